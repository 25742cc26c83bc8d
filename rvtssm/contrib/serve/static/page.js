// The page of `rvtssm serve`: one connection to its session, which sends pictures and takes settings.

const PLOTTED_MS = 15_000;
const SPEEDS = [0.05, 0.1, 0.25, 0.5, 1, 2, 4];
const TICKS_HZ = [20, 50, 100, 150, 200];
const at = (id) => document.getElementById(id);
const query = location.search;

const state = {
  socket: null, page: null, classNames: [], classColors: [], trainedHz: 20,
  name: "", duration: null, downsample: 1, isPaused: false, isSeeking: false,
  isOpening: false, numOpened: 0,
  title: "", picture: null, pixels: null, results: [], threshold: 0.3,
};

// ---- colours: a byte of a picture has the darker events in its upper half and the brighter ones in its lower half

const THEMES = {
  dark: { ground: [16, 19, 26], brighter: [255, 86, 70], darker: [62, 132, 255], rim: "rgb(10 12 18 / .85)" },
  light: { ground: [255, 255, 255], brighter: [205, 30, 20], darker: [20, 85, 215], rim: "rgb(30 34 44 / .75)" },
};
const media = matchMedia("(prefers-color-scheme: light)");
const themeName = () => document.documentElement.dataset.theme ?? (media.matches ? "light" : "dark");

function palette(name) {
  const { ground, brighter, darker } = THEMES[name];
  const colors = new Uint32Array(256);
  for (let byte = 0; byte < 256; byte++) {
    const [dark, bright] = [byte >> 4, byte & 15];
    const total = dark + bright;
    const share = total ? bright / total : 0;
    const strength = total ? 1 - 0.42 * Math.exp(-(total - 1) / 2) : 0;
    const [r, g, b] = ground.map((value, i) =>
      Math.round(value * (1 - strength) + strength * (share * brighter[i] + (1 - share) * darker[i])));
    colors[byte] = (255 << 24) | (b << 16) | (g << 8) | r;
  }
  return colors;
}
let colors = palette(themeName());

function setTheme(name) {
  if (name) document.documentElement.dataset.theme = name;
  colors = palette(themeName());
  drawPicture();
  drawPlot();
}
at("theme").addEventListener("click", () => setTheme(themeName() === "dark" ? "light" : "dark"));
media.addEventListener("change", () => setTheme());

// ---- connection

function connect() {
  const socket = new WebSocket(`${location.protocol.replace("http", "ws")}//${location.host}/session${query}`);
  socket.binaryType = "arraybuffer";
  socket.onmessage = ({ data }) => (typeof data === "string" ? onMessage(JSON.parse(data)) : onPicture(data));
  socket.onclose = () => {
    at("weights").textContent = "not connected";
    for (const id of ["source", "file", "play", "seek"]) at(id).disabled = true;
    busy("");
    if (at("message").hidden) say("The connection to the server has ended. Load the page again.");
  };
  state.socket = socket;
}

function send(command) {
  if (state.socket?.readyState === WebSocket.OPEN) state.socket.send(JSON.stringify(command));
}

function say(text, isError = true) {
  at("message").textContent = text;
  at("message").hidden = !text;
  at("message").classList.toggle("error", isError);
}

function onMessage(message) {
  if (message.kind === "hello") {
    Object.assign(state, {
      page: message.page, classNames: message.class_names, trainedHz: message.trained_hz,
      classColors: message.class_colors,
    });
    at("weights").textContent = message.title;
    at("note").textContent = message.note;
    at("note").hidden = !message.note;
    showTicks(...message.rates);
    at("rate").value = message.hz;
    document.querySelector(`[name=window][value=${message.window}]`).checked = true;
    at("source").replaceChildren(new Option("choose …", ""), ...message.sources.map((name) => new Option(name, name)));
    at("source").disabled = at("file").disabled = false;
    showRate();
    if (message.sources.length && message.sources[0] !== "camera") open(message.sources[0]);
  } else if (message.kind === "opened") {
    clear();
    Object.assign(state, {
      name: message.name, duration: message.duration_s, downsample: message.downsample, isOpening: false,
    });
    say(message.assumed, false);
    busy("");
    at("empty").hidden = true;
    if (message.duration_s !== null) showPaused(false);
    showRate();
    at("play").disabled = at("seek").disabled = message.duration_s === null;
    at("speed-field").hidden = message.duration_s === null;
    at("canvas").style.aspectRatio = `${message.width} / ${message.height}`;
    for (const option of [...at("source").options]) if (option.value === "uploaded") option.remove();
    const known = [...at("source").options].find((option) => option.value === message.name);
    if (!known) at("source").add(new Option(`${message.name} (uploaded)`, "uploaded"));
    at("source").value = known ? message.name : "uploaded";
  } else if (message.kind === "error") {
    say(message.message);
    if (message.is_playing) return;
    busy("");
    clear();
    state.isOpening = false;
    at("empty").hidden = false;
    at("play").disabled = at("seek").disabled = true;
  }
}

// Forget what is of the recording before.
function clear() {
  Object.assign(state, { results: [], picture: null, pixels: null, duration: null, numOpened: state.numOpened + 1 });
  const canvas = at("canvas");
  canvas.getContext("2d").clearRect(0, 0, canvas.width, canvas.height);
  for (const name of ["step", "lag", "done", "count"]) at(name).textContent = "–";
  showLate(false);
  at("caption").textContent = at("notice").textContent = "";
  at("time").textContent = "0.00 s";
  at("seek").value = 0;
  drawPlot();
}

async function onPicture(data) {
  if (state.isOpening) return;  // it is one of the recording before
  const { numOpened } = state;
  const length = new DataView(data).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(data, 4, length)));
  const packed = new Blob([new Uint8Array(data, 4 + length)]).stream();
  const now = performance.now();
  for (const [, step, lag, passed] of header.results) state.results.push({ now, step, lag, passed });
  while (state.results.length && state.results[0].now < now - PLOTTED_MS) state.results.shift();
  const pixels = await new Response(packed.pipeThrough(new DecompressionStream("deflate"))).arrayBuffer();
  if (numOpened !== state.numOpened) return;
  state.picture = header;
  state.pixels = new Uint8Array(pixels);
  requestAnimationFrame(() => { drawPicture(); drawPlot(); showNumbers(); });
}

function open(name) {
  say("");
  if (!name || name === "uploaded") return;
  clear();
  state.isOpening = true;
  at("empty").hidden = true;
  busy(`opening ${name} …`);
  send({ open: name, height: at("height").value, width: at("width").value });
}

// Say over the picture what the page waits for; without a share of the work that is done, the bar only moves.
function busy(text, share = null) {
  at("busy").hidden = !text;
  at("busy-text").textContent = text;
  if (share === null) at("busy-share").removeAttribute("value");
  else at("busy-share").value = share;
}

// ---- drawing

const events = document.createElement("canvas");

function drawPicture() {
  const { picture, pixels } = state;
  if (!picture) return;
  const { width, height, pixel } = picture;
  [events.width, events.height] = [width, height];
  const image = new ImageData(width, height);
  const words = new Uint32Array(image.data.buffer);
  for (let i = 0; i < pixels.length; i++) words[i] = colors[pixels[i]];
  events.getContext("2d").putImageData(image, 0, 0);

  const canvas = at("canvas");
  const shown = Math.min(canvas.clientWidth / width, canvas.clientHeight / height) * devicePixelRatio;
  const scale = Math.max(1, Math.min(shown, 2400 / width));
  [canvas.width, canvas.height] = [Math.round(width * scale), Math.round(height * scale)];
  const context = canvas.getContext("2d");
  context.imageSmoothingEnabled = false;
  context.drawImage(events, 0, 0, canvas.width, canvas.height);
  const boxes = picture.boxes.filter((box) => box[5] >= state.threshold);
  for (const box of boxes.toReversed()) drawBox(context, box, scale / pixel);
  const taken = [];
  for (const box of boxes) taken.push(drawTag(context, box, scale / pixel, taken));
  at("caption").textContent = `${picture.t_s.toFixed(2)} s · ${rounded(picture.hz)} Hz`;
  at("notice").textContent = picture.notice;
  canvas.setAttribute("aria-label", `Events with ${boxes.length} boxes`);
}

function drawBox(context, [left, top, right, bottom, classId], scale) {
  const edges = [left, top, right - left, bottom - top].map((value) => value * scale);
  context.lineWidth = 4 * devicePixelRatio;
  context.strokeStyle = THEMES[themeName()].rim;
  context.strokeRect(...edges);
  context.lineWidth = 2 * devicePixelRatio;
  context.strokeStyle = `rgb(${classColor(classId)})`;
  context.strokeRect(...edges);
}

// Write class and score above the box, or at the first place of those below and inside that no other tag has.
function drawTag(context, [left, top, , bottom, classId, score], scale, taken) {
  const size = 12 * devicePixelRatio;
  const text = `${state.classNames[classId] ?? `class ${classId}`} ${score.toFixed(2)}`;
  context.font = `600 ${size}px ${getComputedStyle(document.body).fontFamily}`;
  const [width, height] = [context.measureText(text).width + size * 0.8, size * 1.5];
  const x = Math.min(Math.max(left * scale - devicePixelRatio, 0), Math.max(context.canvas.width - width, 0));
  const lowest = context.canvas.height - height;
  const tops = [top * scale - height, bottom * scale, top * scale, bottom * scale - height];
  const places = tops.filter((y) => y >= 0 && y <= lowest).map((y) => [x, y, x + width, y + height]);
  const place = places.find((a) => !taken.some((b) => a[0] < b[2] && b[0] < a[2] && a[1] < b[3] && b[1] < a[3]))
    ?? places[0] ?? [x, Math.min(Math.max(top * scale, 0), lowest), x + width, 0];
  const [r, g, b] = classColor(classId);
  context.fillStyle = `rgb(${[r, g, b]})`;
  context.fillRect(place[0], place[1], width, height);
  context.fillStyle = 0.2126 * r + 0.7152 * g + 0.0722 * b > 110 ? "#10131a" : "#fff";
  context.textBaseline = "middle";
  context.fillText(text, place[0] + size * 0.4, place[1] + height / 2);
  return place;
}

function classColor(classId) {
  return state.classColors[classId % state.classColors.length];
}

function drawPlot() {
  const canvas = at("plot");
  const [width, height] = [canvas.clientWidth * devicePixelRatio, canvas.clientHeight * devicePixelRatio];
  [canvas.width, canvas.height] = [width, height];
  const context = canvas.getContext("2d");
  const probe = at("plot").parentElement;
  if (!width) return;
  const color = (name) => { probe.style.color = `var(${name})`; return getComputedStyle(probe).color; };
  const [quiet, line, step, lag] = ["--quiet", "--line", "--step", "--lag"].map(color);
  probe.style.color = "";
  const stride = 1000 / Number(at("rate").value);
  const highest = Math.max(stride, ...state.results.map((result) => result.lag)) * 1.15;
  const [left, right, top, bottom] = [34, 4, 6, 6].map((px) => px * devicePixelRatio);
  const y = (ms) => height - bottom - (ms / highest) * (height - top - bottom);
  const x = (now) => width - right - ((performance.now() - now) / PLOTTED_MS) * (width - left - right);

  const tick = niceStep(highest / 3);
  context.font = `${11 * devicePixelRatio}px ${getComputedStyle(document.body).fontFamily}`;
  context.textAlign = "right";
  context.textBaseline = "middle";
  context.lineWidth = devicePixelRatio;
  for (let ms = 0; ms < highest; ms += tick) {
    context.strokeStyle = line;
    context.beginPath();
    context.moveTo(left, y(ms));
    context.lineTo(width - right, y(ms));
    context.stroke();
    context.fillStyle = quiet;
    context.fillText(`${Number(ms.toPrecision(3))}`, left - 6 * devicePixelRatio, y(ms));
  }
  context.setLineDash([5 * devicePixelRatio, 4 * devicePixelRatio]);
  context.strokeStyle = quiet;
  context.beginPath();
  context.moveTo(left, y(stride));
  context.lineTo(width - right, y(stride));
  context.stroke();
  context.setLineDash([]);
  context.beginPath();
  context.rect(left, 0, width - left, height);
  context.clip(); // what is older than the plot would lie over its numbers
  for (const [name, ink] of [["lag", lag], ["step", step]]) {
    context.strokeStyle = context.fillStyle = ink;
    context.lineWidth = 1.6 * devicePixelRatio;
    context.beginPath();
    state.results.forEach((result, i) => context[i ? "lineTo" : "moveTo"](x(result.now), y(result[name])));
    context.stroke();
  }
}

function niceStep(least) {
  const power = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= least);
}

// ---- numbers

const median = (values) => values.toSorted((a, b) => a - b)[values.length >> 1];
const rounded = (value) => Number(value.toPrecision(3));
const ms = (value) => (value < 100 ? value.toFixed(1) : `${Math.round(value)}`);

function showNumbers() {
  const { picture, results, duration } = state;
  if (!picture) return;
  const recent = results.filter((result) => result.now > performance.now() - 2000);
  if (recent.length) {
    const passed = recent.reduce((sum, result) => sum + result.passed, 0);
    at("step").textContent = ms(median(recent.map((result) => result.step)));
    at("lag").textContent = ms(median(recent.map((result) => result.lag)));
    const share = recent.length / (recent.length + passed);
    const isKnown = results.length > 1;  // no window was passed over before the first one
    at("done").textContent = isKnown ? `${Math.round(100 * share)}` : "–";
    at("done").title = `of the windows that closed; ${passed} of the last two seconds were passed over`;
    showLate(isKnown && share < 0.99);
  }
  at("count").textContent = picture.boxes.filter((box) => box[5] >= state.threshold).length;
  if (duration !== null) {
    at("time").textContent = `${picture.t_s.toFixed(2)} / ${duration.toFixed(2)} s`;
    if (!state.isSeeking) at("seek").value = Math.round(1000 * picture.t_s / duration);
  } else {
    at("time").textContent = `${picture.t_s.toFixed(1)} s`;
  }
}

function showLate(isLate) {
  at("done").parentElement.classList.toggle("late", isLate);
  at("late-note").hidden = !isLate;
}

function showRate() {
  const hz = Number(at("rate").value);
  at("rate-value").innerHTML = `<b>${rounded(hz)}</b> Hz`;
  at("rate").setAttribute("aria-valuetext", `${rounded(hz)} hertz`);
  const reduced = state.downsample > 1 ? `; the detector sees the sensor reduced by ${state.downsample}` : "";
  at("rate-note").textContent =
    `a window every ${rounded(1000 / hz)} ms; time step of the model ×\u00a0${rounded(state.trainedHz / hz)}${reduced}`;
  const isSliding = document.querySelector("[name=window]:checked").value === "slide";
  at("window-note").textContent = isSliding
    ? "at every rate as long as in training, so that they overlap at high rates"
    : "as long as from one to the next, so that they are shorter at high rates";
}

function showTicks(lowest, highest) {
  [at("rate").min, at("rate").max] = [lowest, highest];
  const shown = [lowest, ...TICKS_HZ.filter((hz) => hz > lowest && hz < highest), highest];
  at("rates").replaceChildren(...shown.map((hz) => new Option("", hz)));
  at("rate-ticks").replaceChildren(...shown.map((hz) => {
    const tick = document.createElement("span");
    tick.textContent = rounded(hz);
    tick.style.setProperty("--at", (hz - lowest) / (highest - lowest));
    return tick;
  }));
}

// ---- controls

function setRate(hz) {
  at("rate").value = Math.round(hz);
  showRate();
  send({ hz: Number(at("rate").value) });
}

function setPaused(isPaused) {
  showPaused(isPaused);
  send({ paused: isPaused });
}

function showPaused(isPaused) {
  state.isPaused = isPaused;
  at("play").textContent = isPaused ? "▶" : "❚❚";
  at("play").setAttribute("aria-label", isPaused ? "Play" : "Pause");
}

at("rate").addEventListener("input", () => setRate(Number(at("rate").value)));
at("play").addEventListener("click", () => setPaused(!state.isPaused));
at("source").addEventListener("change", () => {
  at("height").value = at("width").value = "";  // the size is that of the recording before
  open(at("source").value);
});
for (const side of ["height", "width"]) {
  at(side).addEventListener("change", () => {
    if (!at("height").value !== !at("width").value) return;  // the other one is still to come
    at("height").closest("details").open = false;  // it would hide what the page says
    open(at("source").value);
  });
}
at("threshold").addEventListener("input", () => {
  state.threshold = Number(at("threshold").value);
  at("threshold-value").textContent = state.threshold.toFixed(2);
  drawPicture();
  showNumbers();
});
at("speed").addEventListener("input", () => {
  const speed = SPEEDS[at("speed").value];
  at("speed-value").textContent = `${speed} ×`;
  at("speed").setAttribute("aria-valuetext", `${speed} times`);
  send({ speed });
});
at("seek").addEventListener("pointerdown", () => { state.isSeeking = true; });
at("seek").addEventListener("input", () => send({ seek: at("seek").value / 1000 }));
at("seek").addEventListener("change", () => { state.isSeeking = false; });
for (const input of document.querySelectorAll("[name=window], [name=precision]")) {
  input.addEventListener("change", () => { showRate(); send({ [input.name]: input.value }); });
}

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const isTyping = event.target.matches("input, select, summary, textarea");
  const isButton = event.target.matches("button, summary");
  const step = event.shiftKey ? 10 : 1;
  const moves = { ArrowLeft: -step, ArrowDown: -step, ArrowRight: step, ArrowUp: step };
  if (event.key === " " && !isButton && !event.target.matches("[type=radio], select, [type=file], summary")) {
    if (!at("play").disabled) setPaused(!state.isPaused);
  } else if (event.key in moves && (!isTyping || event.target.id === "rate")) {
    setRate(Number(at("rate").value) + moves[event.key]);
  } else if (event.key === "Home" && !isTyping) {
    send({ seek: 0 });
  } else {
    return;
  }
  event.preventDefault();
});

// ---- uploads

function upload(file) {
  if (!file || !state.page) return;
  say("");
  const size = new URLSearchParams(query);
  for (const side of ["height", "width"]) if (at(side).value) size.set(side, at(side).value);
  const request = new XMLHttpRequest();  // fetch does not tell how much was sent
  const startedAt = performance.now();
  let timer = null;
  request.upload.onprogress = ({ loaded, total }) => busy(`sending ${file.name} …`, loaded / total);
  request.upload.onload = () => {
    const tick = () => busy(`checking ${file.name} … ${Math.round((performance.now() - startedAt) / 1000)} s`);
    tick();
    timer = setInterval(tick, 500);
  };
  request.onloadend = () => {
    clearInterval(timer);
    busy("");
    at("file").value = "";
    if (request.status !== 200) say(request.response?.message ?? `${file.name} could not be sent; it may be too large`);
  };
  busy(`sending ${file.name} …`, 0);
  request.open("POST", `upload/${state.page}?${size}`);
  request.responseType = "json";
  request.setRequestHeader("X-File-Name", encodeURIComponent(file.name));
  request.send(file);
}

at("file").addEventListener("change", () => upload(at("file").files[0]));
for (const [kind, isOver] of [["dragover", true], ["dragleave", false], ["drop", false]]) {
  at("picture").addEventListener(kind, (event) => {
    event.preventDefault();
    at("picture").classList.toggle("dropping", isOver);
    if (kind === "drop") upload(event.dataTransfer.files[0]);
  });
}
addEventListener("resize", () => { drawPicture(); drawPlot(); });
connect();
