// Boxes from events with an exported file, in C++ and with onnxruntime alone.
//
//   rvtssm export street-tiny out=model.onnx
//   g++ -std=c++17 -O2 detect.cpp -I ORT/include -L ORT/lib -l onnxruntime -o detect
//   ./detect model.onnx 0.3 < events.txt
//
// ORT is an unpacked release of onnxruntime, whose C interface this program uses, so that any release does. Each line of
// events.txt is "t x y p": microseconds, pixels of the frame, and 1 for brighter. Each line that comes out is a box:
// end of the window in microseconds, class, score, left, top, right, bottom. The state is carried from window to window.
// The program is for histograms (docs/live.md) and for frames as large as the sensor.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include <onnxruntime_c_api.h>

static const OrtApi* ort = OrtGetApiBase()->GetApi(ORT_API_VERSION);

static void check(OrtStatus* status) {
    if (status == nullptr) return;
    std::fprintf(stderr, "onnxruntime: %s\n", ort->GetErrorMessage(status));
    std::exit(1);
}

struct Event {
    int64_t t, x, y, p;
};

struct Box {
    float score, left, top, right, bottom;
    int class_id;
};

struct Tensor {
    std::string name;
    std::vector<int64_t> shape;  // for one stream
    std::vector<float> values;

    size_t size() const {
        size_t product = 1;
        for (int64_t side : shape) product *= side;
        return product;
    }
};

// The number after a key of the description, which is JSON; `otherwise` if it is null.
static double number(const std::string& json, const std::string& key, double otherwise) {
    size_t at = json.find("\"" + key + "\": ");
    if (at == std::string::npos) return otherwise;
    const char* text = json.c_str() + at + key.size() + 4;
    char* end = nullptr;
    double value = std::strtod(text, &end);
    return end == text ? otherwise : value;
}

class Detector {
public:
    explicit Detector(const char* path) {
        OrtEnv* environment = nullptr;
        OrtSessionOptions* options = nullptr;
        check(ort->CreateEnv(ORT_LOGGING_LEVEL_WARNING, "detect", &environment));
        check(ort->CreateSessionOptions(&options));
        // Threads that wait leave the processor to other programs.
        check(ort->AddSessionConfigEntry(options, "session.intra_op.allow_spinning", "0"));
        check(ort->CreateSession(environment, path, options, &session_));
        check(ort->GetAllocatorWithDefaultOptions(&allocator_));
        check(ort->CreateCpuMemoryInfo(OrtArenaAllocator, OrtMemTypeDefault, &memory_));
        read_names();
        read_description();
    }

    int64_t stride_us, length_us;

    // The boxes of the window [start_us, end_us), best first. Windows come in order of time.
    std::vector<Box> detect(const Event* first, const Event* last, int64_t start_us, int64_t end_us, float min_score) {
        std::vector<uint8_t> frame = histogram(first, last, start_us, end_us);
        float step_scale = float(double(end_us - last_end_us_) / trained_stride_us_);
        last_end_us_ = end_us;
        std::vector<float> predictions = step(frame, step_scale);
        return suppressed(above(predictions, min_score));
    }

    void begin(int64_t first_us) {
        last_end_us_ = first_us;
        for (Tensor& state : state_) std::fill(state.values.begin(), state.values.end(), 0.0f);
    }

private:
    void read_names() {
        size_t num_inputs = 0, num_outputs = 0;
        check(ort->SessionGetInputCount(session_, &num_inputs));
        check(ort->SessionGetOutputCount(session_, &num_outputs));
        for (size_t i = 0; i < num_inputs; i++) {
            char* name = nullptr;
            OrtTypeInfo* type = nullptr;
            const OrtTensorTypeAndShapeInfo* info = nullptr;
            size_t num_axes = 0;
            check(ort->SessionGetInputName(session_, i, allocator_, &name));
            check(ort->SessionGetInputTypeInfo(session_, i, &type));
            check(ort->CastTypeInfoToTensorInfo(type, &info));
            check(ort->GetDimensionsCount(info, &num_axes));
            Tensor tensor{name, std::vector<int64_t>(num_axes), {}};
            check(ort->GetDimensions(info, tensor.shape.data(), num_axes));
            tensor.shape[0] = 1;  // one stream
            if (tensor.name == "hist") {
                frame_shape_ = tensor.shape;
            } else if (tensor.name != "step_scale") {
                tensor.values.assign(tensor.size(), 0.0f);
                state_.push_back(tensor);
            }
            ort->ReleaseTypeInfo(type);
        }
        for (size_t i = 0; i < num_outputs; i++) {  // the predictions, then the next state in the order of the inputs
            char* name = nullptr;
            check(ort->SessionGetOutputName(session_, i, allocator_, &name));
            outputs_.push_back(name);
        }
    }

    void read_description() {
        OrtModelMetadata* metadata = nullptr;
        char* text = nullptr;
        check(ort->SessionGetModelMetadata(session_, &metadata));
        check(ort->ModelMetadataLookupCustomMetadataMap(metadata, allocator_, "rvtssm", &text));
        std::string json = text == nullptr ? "" : text;
        trained_stride_us_ = number(json, "stride_us", 50000);
        stride_us = std::llround(trained_stride_us_);
        length_us = std::llround(number(json, "length_us", trained_stride_us_));
        num_bins_ = int64_t(number(json, "num_bins", 10));
        count_cutoff_ = int(number(json, "count_cutoff", 10));
    }

    // Events per polarity, time bin and pixel; counts saturate.
    std::vector<uint8_t> histogram(const Event* first, const Event* last, int64_t start_us, int64_t end_us) const {
        const int64_t height = frame_shape_[2], width = frame_shape_[3];
        std::vector<uint8_t> counts(frame_shape_[1] * height * width, 0);
        for (const Event* event = first; event != last; event++) {
            int64_t bin = (event->t - start_us) * num_bins_ / (end_us - start_us);
            uint8_t& count = counts[((event->p * num_bins_ + bin) * height + event->y) * width + event->x];
            if (count < count_cutoff_) count++;
        }
        return counts;
    }

    // Runs the network, keeps the next state, and returns the rows [cx, cy, w, h, objectness, classes...].
    std::vector<float> step(std::vector<uint8_t>& frame, float step_scale) {
        std::vector<const char*> names = {"hist", "step_scale"};
        std::vector<OrtValue*> inputs(2 + state_.size(), nullptr), outputs(outputs_.size(), nullptr);
        const int64_t one = 1;
        check(ort->CreateTensorWithDataAsOrtValue(memory_, frame.data(), frame.size(), frame_shape_.data(), 4,
                                                  ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8, &inputs[0]));
        check(ort->CreateTensorWithDataAsOrtValue(memory_, &step_scale, sizeof(float), &one, 1,
                                                  ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, &inputs[1]));
        for (size_t i = 0; i < state_.size(); i++) {
            Tensor& state = state_[i];
            names.push_back(state.name.c_str());
            check(ort->CreateTensorWithDataAsOrtValue(
                memory_, state.values.data(), state.values.size() * sizeof(float), state.shape.data(),
                state.shape.size(), ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, &inputs[2 + i]));
        }
        check(ort->Run(session_, nullptr, names.data(), inputs.data(), inputs.size(), outputs_.data(),
                       outputs_.size(), outputs.data()));
        std::vector<float> predictions = values_of(outputs[0]);
        OrtTensorTypeAndShapeInfo* info = nullptr;
        std::array<int64_t, 3> shape{};
        check(ort->GetTensorTypeAndShape(outputs[0], &info));
        check(ort->GetDimensions(info, shape.data(), 3));
        row_length_ = shape[2];
        ort->ReleaseTensorTypeAndShapeInfo(info);
        for (size_t i = 0; i < state_.size(); i++) state_[i].values = values_of(outputs[1 + i]);
        for (OrtValue* value : inputs) ort->ReleaseValue(value);
        for (OrtValue* value : outputs) ort->ReleaseValue(value);
        return predictions;
    }

    static std::vector<float> values_of(OrtValue* value) {
        OrtTensorTypeAndShapeInfo* info = nullptr;
        size_t count = 0;
        float* data = nullptr;
        check(ort->GetTensorTypeAndShape(value, &info));
        check(ort->GetTensorShapeElementCount(info, &count));
        ort->ReleaseTensorTypeAndShapeInfo(info);
        check(ort->GetTensorMutableData(value, reinterpret_cast<void**>(&data)));
        return std::vector<float>(data, data + count);
    }

    static float sigmoid(float x) { return 1 / (1 + std::exp(-x)); }

    // The boxes from a score on: objectness times the probability of the best class.
    std::vector<Box> above(const std::vector<float>& predictions, float min_score) const {
        std::vector<Box> boxes;
        for (size_t start = 0; start < predictions.size(); start += row_length_) {
            const float* row = predictions.data() + start;
            const float* best = std::max_element(row + 5, row + row_length_);
            float score = sigmoid(row[4]) * sigmoid(*best);
            if (score < min_score) continue;
            boxes.push_back({score, row[0] - row[2] / 2, row[1] - row[3] / 2, row[0] + row[2] / 2, row[1] + row[3] / 2,
                             int(best - row - 5)});
        }
        std::stable_sort(boxes.begin(), boxes.end(), [](const Box& a, const Box& b) { return a.score > b.score; });
        return boxes;
    }

    // Non-maximum suppression within each class, of boxes that come best first; then they are clipped to the frame.
    std::vector<Box> suppressed(const std::vector<Box>& boxes) const {
        std::vector<Box> result;
        for (const Box& box : boxes) {
            bool is_new = std::none_of(result.begin(), result.end(), [&](const Box& better) {
                return better.class_id == box.class_id && overlap(better, box) > 0.45f;
            });
            if (is_new) result.push_back(box);
        }
        for (Box& box : result) {
            box.left = std::clamp(box.left, 0.0f, float(frame_shape_[3]));
            box.right = std::clamp(box.right, 0.0f, float(frame_shape_[3]));
            box.top = std::clamp(box.top, 0.0f, float(frame_shape_[2]));
            box.bottom = std::clamp(box.bottom, 0.0f, float(frame_shape_[2]));
        }
        auto is_outside = [](const Box& box) { return box.right <= box.left || box.bottom <= box.top; };
        result.erase(std::remove_if(result.begin(), result.end(), is_outside), result.end());
        return result;
    }

    // Intersection over union.
    static float overlap(const Box& a, const Box& b) {
        float width = std::min(a.right, b.right) - std::max(a.left, b.left);
        float height = std::min(a.bottom, b.bottom) - std::max(a.top, b.top);
        if (width <= 0 || height <= 0) return 0;
        float areas = (a.right - a.left) * (a.bottom - a.top) + (b.right - b.left) * (b.bottom - b.top);
        return width * height / (areas - width * height);
    }

    OrtSession* session_ = nullptr;
    OrtAllocator* allocator_ = nullptr;
    OrtMemoryInfo* memory_ = nullptr;
    std::vector<int64_t> frame_shape_;
    std::vector<Tensor> state_;
    std::vector<const char*> outputs_;
    double trained_stride_us_ = 0;
    int64_t num_bins_ = 0, last_end_us_ = 0, row_length_ = 0;
    int count_cutoff_ = 0;
};

int main(int argc, char** argv) {
    if (argc < 2) {
        std::fprintf(stderr, "usage: detect model.onnx [min_score] < events.txt\n");
        return 2;
    }
    Detector detector(argv[1]);
    const float min_score = argc > 2 ? std::strtof(argv[2], nullptr) : 0.3f;
    std::vector<Event> events;
    long long t, x, y, p;
    while (std::scanf("%lld %lld %lld %lld", &t, &x, &y, &p) == 4) events.push_back({t, x, y, p});
    if (events.empty()) return 0;
    detector.begin(events.front().t);
    auto first_at = [&](int64_t time_us) {
        return std::lower_bound(events.begin(), events.end(), time_us,
                                [](const Event& event, int64_t time) { return event.t < time; }) -
               events.begin();
    };
    for (int64_t end_us = events.front().t + detector.stride_us; end_us <= events.back().t; end_us += detector.stride_us) {
        const int64_t start_us = end_us - detector.length_us;
        const Event* data = events.data();
        for (const Box& box : detector.detect(data + first_at(start_us), data + first_at(end_us), start_us, end_us, min_score))
            std::printf("%lld %d %.6f %.3f %.3f %.3f %.3f\n", (long long)end_us, box.class_id, box.score, box.left,
                        box.top, box.right, box.bottom);
    }
}
