// Boxes from events with an exported file, in C++ and with OpenVINO alone, as its wheel brings it.
//
//   rvtssm export street-tiny out=model.onnx
//   OV=$(python -c "import openvino; print(openvino.__path__[0])")
//   g++ -std=c++17 -O2 detect.cpp -I $OV/include $OV/libs/libopenvino.so.* -Wl,-rpath,$OV/libs -o detect
//   ./detect model.onnx 0.3 < events.txt
//
// It reads model.xml as well. Each line of events.txt is "t x y p": microseconds, pixels of the frame, and 1 for
// brighter. Each line that comes out is a box: end of the window in microseconds, class, score, left, top, right, bottom.
// The state is carried from window to window. The program is for histograms (docs/live.md) and for frames as large as the
// sensor. With another runtime, only the class Network differs.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <openvino/openvino.hpp>

struct Event {
    int64_t t, x, y, p;
};

struct Box {
    float score, left, top, right, bottom;
    int class_id;
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

// One step of the exported network, with the state that it carries.
class Network {
public:
    std::string description;  // JSON
    ov::Shape frame_shape;    // 1, channels, height, width

    explicit Network(const std::string& path) {
        ov::Core core;
        std::shared_ptr<ov::Model> model = core.read_model(path);
        description = model->get_rt_info<std::string>("framework", "rvtssm");
        std::map<std::string, ov::PartialShape> shapes;
        for (const auto& input : model->inputs()) {
            shapes[input.get_any_name()] = input.get_partial_shape();
            shapes[input.get_any_name()][0] = 1;  // one stream
        }
        model->reshape(shapes);
        request_ = core.compile_model(model, "CPU", ov::hint::inference_precision(ov::element::f32)).create_infer_request();
        frame_shape = shapes["hist"].to_shape();
        for (const auto& input : model->inputs()) {
            if (input.get_any_name().rfind("state_", 0) == 0) state_names_.push_back(input.get_any_name());
        }
        begin();
    }

    // Start from a state of zeros.
    void begin() {
        for (const std::string& name : state_names_) {
            ov::Tensor state = request_.get_tensor(name);
            std::fill_n(state.data<float>(), state.get_size(), 0.0f);
        }
    }

    // Return the predictions for a frame: rows [cx, cy, w, h, objectness, classes...].
    ov::Tensor step(std::vector<uint8_t>& frame, float step_scale) {
        request_.set_tensor("hist", ov::Tensor(ov::element::u8, frame_shape, frame.data()));
        request_.set_tensor("step_scale", ov::Tensor(ov::element::f32, {1}, &step_scale));
        request_.infer();
        for (const std::string& name : state_names_) {
            request_.get_tensor("next_" + name).copy_to(request_.get_tensor(name));
        }
        return request_.get_output_tensor(0);
    }

private:
    ov::InferRequest request_;
    std::vector<std::string> state_names_;
};

class Detector {
public:
    explicit Detector(const std::string& path) : network_(path) {
        const std::string& json = network_.description;
        trained_stride_us_ = number(json, "stride_us", 50000);
        stride_us = std::llround(trained_stride_us_);
        length_us = std::llround(number(json, "length_us", trained_stride_us_));
        num_bins_ = int64_t(number(json, "num_bins", 10));
        count_cutoff_ = int(number(json, "count_cutoff", 10));
    }

    int64_t stride_us, length_us;

    // The boxes of the window [start_us, end_us), best first. Windows come in order of time.
    std::vector<Box> detect(const Event* first, const Event* last, int64_t start_us, int64_t end_us, float min_score) {
        std::vector<uint8_t> frame = histogram(first, last, start_us, end_us);
        float step_scale = float(double(end_us - last_end_us_) / trained_stride_us_);
        last_end_us_ = end_us;
        return suppressed(above(network_.step(frame, step_scale), min_score));
    }

    void begin(int64_t first_us) {
        last_end_us_ = first_us;
        network_.begin();
    }

private:
    // Events per polarity, time bin and pixel; counts saturate.
    std::vector<uint8_t> histogram(const Event* first, const Event* last, int64_t start_us, int64_t end_us) const {
        const int64_t height = network_.frame_shape[2], width = network_.frame_shape[3];
        std::vector<uint8_t> counts(network_.frame_shape[1] * height * width, 0);
        for (const Event* event = first; event != last; event++) {
            if (event->x < 0 || event->x >= width || event->y < 0 || event->y >= height) continue;  // beside the frame
            int64_t bin = (event->t - start_us) * num_bins_ / (end_us - start_us);
            uint8_t& count = counts[(((event->p == 1) * num_bins_ + bin) * height + event->y) * width + event->x];
            if (count < count_cutoff_) count++;
        }
        return counts;
    }

    static float sigmoid(float x) { return 1 / (1 + std::exp(-x)); }

    // The boxes from a score on: objectness times the probability of the best class.
    static std::vector<Box> above(const ov::Tensor& predictions, float min_score) {
        std::vector<Box> boxes;
        const size_t num_rows = predictions.get_shape()[1], row_length = predictions.get_shape()[2];
        for (size_t i = 0; i < num_rows; i++) {
            const float* row = predictions.data<float>() + i * row_length;
            const float* best = std::max_element(row + 5, row + row_length);
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
        const float height = network_.frame_shape[2], width = network_.frame_shape[3];
        std::vector<Box> result;
        for (const Box& box : boxes) {
            bool is_new = std::none_of(result.begin(), result.end(), [&](const Box& better) {
                return better.class_id == box.class_id && overlap(better, box) > 0.45f;
            });
            if (is_new) result.push_back(box);
        }
        for (Box& box : result) {
            box.left = std::clamp(box.left, 0.0f, width);
            box.right = std::clamp(box.right, 0.0f, width);
            box.top = std::clamp(box.top, 0.0f, height);
            box.bottom = std::clamp(box.bottom, 0.0f, height);
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

    Network network_;
    double trained_stride_us_ = 0;
    int64_t num_bins_ = 0, last_end_us_ = 0;
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
