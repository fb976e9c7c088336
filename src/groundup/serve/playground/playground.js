// The playground: one page over /v1/completions. Panes hold settings and a text each; all run on one prompt.

const NUM_ALTERNATIVES = 5;
const NUMBERS = ["max_tokens", "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed"];

const element = (id) => document.getElementById(id);
const prompt = element("prompt");
const popover = element("alternatives");
let model = "";
let panes = [];

// ---- the service ---------------------------------------------------------------------------------------

function headers() {
  const key = element("key").value;
  return { "Content-Type": "application/json", ...(key && { Authorization: `Bearer ${key}` }) };
}

async function refusal(response) {
  const text = await response.text();
  try {
    const { error } = JSON.parse(text);
    return error.param ? `${error.param}: ${error.message}` : error.message;
  } catch {
    return text || `the service answered ${response.status}`;
  }
}

/** Yields the events of a stream of server-sent events as objects, until [DONE]. */
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new Error("the service closed the connection before the text ended");
    const lines = (rest + value).split(/\r?\n/);
    rest = lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data:")) continue;
      const data = line.slice(5).trim();
      if (data === "[DONE]") return;
      yield JSON.parse(data);
    }
  }
}

async function connect() {
  try {
    const response = await fetch("v1/models", { headers: headers() });
    element("key-field").hidden = response.status !== 401 && !element("key").value;
    if (!response.ok) throw new Error(await refusal(response));
    model = (await response.json()).data[0].id;
    element("model").textContent = model;
  } catch (error) {
    element("model").textContent = error.message;
  }
}

// ---- panes ---------------------------------------------------------------------------------------------

class Pane {
  constructor(name, settings) {
    this.node = element("pane").content.cloneNode(true).firstElementChild;
    this.part = (selector) => this.node.querySelector(selector);
    this.output = this.part(".output");
    this.text = "";
    this.part("h2").textContent = name;
    this.output.setAttribute("aria-label", `Text${name && ` of ${name}`}`);
    for (const input of this.node.querySelectorAll("input")) {
      if (settings?.[input.name] !== undefined) input.value = settings[input.name];
    }
    this.part(".keep").onclick = () => continueFrom(this.prompt + this.text);
    this.part(".copy").onclick = () => copy(this.prompt === undefined ? "" : this.prompt + this.text, "text");
    this.part(".curl").onclick = () => copy(this.curl(), "curl command");
    this.output.addEventListener("keydown", (event) => this.walk(event));
  }

  values() {
    return Object.fromEntries([...this.node.querySelectorAll("input")].map((input) => [input.name, input.value]));
  }

  request() {
    const values = this.values();
    const body = { model, prompt: prompt.value, stream: true, logprobs: NUM_ALTERNATIVES, overflow: "stop" };
    for (const name of NUMBERS) if (values[name] !== "") body[name] = Number(values[name]);
    if (values.stop) body.stop = [values.stop.replaceAll("\\n", "\n").replaceAll("\\t", "\t")];
    return body;
  }

  curl() {
    const quoted = (text) => `'${text.replaceAll("'", String.raw`'\''`)}'`;
    const key = element("key").value && ` -H 'Authorization: Bearer '"$API_KEY"`;
    const address = new URL("v1/completions", location.href).href;
    return `curl -N ${quoted(address)} -H 'Content-Type: application/json'${key} -d ${quoted(JSON.stringify(this.request()))}`;
  }

  async run(signal) {
    const body = this.request();
    this.prompt = body.prompt;
    this.text = "";
    this.pending = [];
    this.numTokens = 0;
    this.output.replaceChildren(span("given", body.prompt));
    this.output.classList.add("running");
    this.part(".facts").textContent = "";
    this.part(".keep").disabled = true;
    const begin = performance.now();
    let first, finished;
    try {
      const response = await fetch("v1/completions", { method: "POST", headers: headers(), body: JSON.stringify(body), signal });
      if (!response.ok) throw new Error(await refusal(response));
      for await (const event of events(response)) {
        if (event.error) throw new Error(event.error.message);
        const [choice] = event.choices;
        if (!choice) continue;
        first ??= performance.now();
        this.receive(choice);
        finished = choice.finish_reason ?? finished;
      }
    } catch (error) {
      finished = error.name === "AbortError" ? "stopped" : "failed";
      if (finished === "failed") this.output.append(span("error", `\n${error.message}`));
    } finally {
      this.output.classList.remove("running");
      this.part(".keep").disabled = !this.text;
      this.report(begin, first, finished);
    }
  }

  /** Shows what an event adds. Tokens wait while their text does: half a character, or the begin of a stop string. */
  receive({ text, logprobs }) {
    const { tokens = [], token_logprobs = [], top_logprobs = [] } = logprobs ?? {};
    tokens.forEach((token, i) => this.pending.push({ token, logprob: token_logprobs[i], top: top_logprobs[i] ?? {} }));
    this.numTokens += tokens.length;
    this.text += text;
    while (this.pending.length && this.pending[0].token && text.startsWith(this.pending[0].token)) {
      const [one] = this.pending.splice(0, 1);
      this.show(one.token, one);
      text = text.slice(one.token.length);
    }
    if (!text) return;
    // A character of several tokens: its probability is their product, its alternatives are the first one's.
    const together = this.pending.splice(0);
    const logprob = together.reduce((sum, one) => sum + one.logprob, 0);
    this.show(text, together.length && { token: text, logprob, top: together[0].top });
  }

  show(text, token) {
    const node = span(token ? "token" : "", text);
    if (token) {
      const before = this.prompt + this.text.slice(0, this.shown());
      node.tabIndex = -1;
      node.setAttribute("role", "button");
      node.style.setProperty("--surprise", 1 - Math.exp(token.logprob));
      node.onpointerenter = (event) => event.pointerType === "mouse" && !popover.contains(document.activeElement) && offer(node, token, before);
      node.onpointerleave = (event) => leave(event.relatedTarget);
      node.onclick = () => offer(node, token, before, true);
      node.onfocus = () => offer(node, token, before);
      node.onblur = (event) => leave(event.relatedTarget);
    }
    this.output.append(node);
  }

  /** Returns how many characters of the text are on the page. */
  shown() {
    return this.output.textContent.length - this.prompt.length;
  }

  report(begin, first, finished) {
    const seconds = (performance.now() - begin) / 1000;
    const facts = [`${this.numTokens} tokens`];
    if (first !== undefined) facts.push(`first after ${Math.round(first - begin)} ms`);
    facts.push(`${(this.numTokens / seconds).toFixed(0)} tokens/s`, `ended by ${finished ?? "the service"}`);
    this.part(".facts").textContent = facts.join(" · ");
  }

  /** Moves among the tokens by the arrow keys; Enter opens the alternatives. */
  walk(event) {
    const tokens = [...this.output.querySelectorAll(".token")];
    const at = tokens.indexOf(document.activeElement);
    const to = { ArrowRight: at + 1, ArrowLeft: at < 0 ? tokens.length - 1 : at - 1, Home: 0, End: tokens.length - 1 }[event.key];
    if (to !== undefined && tokens[to]) {
      event.preventDefault();
      tokens[to].focus();
    } else if (at >= 0 && (event.key === "Enter" || event.key === " ")) {
      event.preventDefault();
      tokens[at].click();
    }
  }
}

function span(name, text) {
  const node = document.createElement("span");
  node.className = name;
  node.textContent = text;
  return node;
}

function continueFrom(text) {
  prompt.value = text;
  prompt.focus();
  prompt.setSelectionRange(text.length, text.length);
  prompt.scrollTop = prompt.scrollHeight;
}

// ---- alternatives of a token ---------------------------------------------------------------------------

/** Shows what else could have stood here; choosing one makes the text up to it the prompt, and goes on. */
function offer(node, token, before, focus = false) {
  const choices = Object.entries({ ...token.top, [token.token]: token.logprob }).sort((a, b) => b[1] - a[1]);
  const list = document.createElement("ul");
  for (const [text, logprob] of choices) {
    const button = document.createElement("button");
    const code = document.createElement("code");
    code.textContent = JSON.stringify(text).slice(1, -1).replaceAll(" ", "␣");
    const share = Math.exp(logprob);
    button.type = "button";
    button.style.setProperty("--share", share);
    button.setAttribute("aria-current", text === token.token);
    button.title = `log-probability ${logprob.toFixed(4)}`;
    button.append(code, `${(100 * share).toFixed(share < 0.001 ? 3 : 1)} %`);
    button.onclick = () => {
      popover.hidePopover();
      continueFrom(before + text);
      run();
    };
    const item = document.createElement("li");
    item.append(button);
    list.append(item);
  }
  const hint = document.createElement("p");
  hint.textContent = `log-probability ${token.logprob.toFixed(4)}. Choose one to go on from it.`;
  popover.replaceChildren(list, hint);
  popover.showPopover();
  const at = node.getClientRects()[0];
  const box = popover.getBoundingClientRect();
  popover.style.left = `${Math.max(8, Math.min(at.left, innerWidth - box.width - 8))}px`;
  popover.style.top = `${at.bottom + box.height > innerHeight ? Math.max(8, at.top - box.height) : at.bottom}px`;
  popover.onpointerleave = (event) => leave(event.relatedTarget, node);
  popover.origin = node;
  if (focus) list.querySelector("button").focus();
}

/** Hides the alternatives, unless the pointer or the focus went to them. */
function leave(to) {
  if (popover.contains(to) || popover.contains(document.activeElement)) return;
  if (popover.matches(":popover-open")) popover.hidePopover();
}

// ---- the page ------------------------------------------------------------------------------------------

let running = null;

async function run() {
  if (!element("form").reportValidity() || panes.some((pane) => [...pane.node.querySelectorAll("input")].some((input) => !input.reportValidity()))) return;
  running?.abort();
  const mine = (running = new AbortController());
  element("stop").disabled = false;
  remember();
  await Promise.all(panes.map((pane) => pane.run(mine.signal)));
  if (running !== mine) return;
  running = null;
  element("stop").disabled = true;
  element("announcement").textContent = panes.map((pane) => pane.text).join("\n");
}

async function copy(text, what) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Browsers keep the clipboard from pages that came over plain HTTP from another machine.
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  element("announcement").textContent = `Copied the ${what}.`;
  const button = document.activeElement;
  if (button?.tagName !== "BUTTON" || button.dataset.label) return;
  button.dataset.label = button.textContent;
  button.textContent = "Copied";
  setTimeout(() => {
    button.textContent = button.dataset.label;
    delete button.dataset.label;
  }, 1200);
}

function arrange(settings) {
  const names = element("compare").checked ? ["A", "B"] : [""];
  running?.abort();
  const before = settings ?? panes.map((pane) => pane.values());
  panes = names.map((name, i) => new Pane(name, before[i] ?? before[0]));
  element("panes").replaceChildren(...panes.map((pane) => pane.node));
  // On a phone the text should be in sight.
  if (innerWidth < 600) for (const pane of panes) pane.part("details").open = false;
}

const memory = {
  read() {
    try { return JSON.parse(localStorage.getItem("groundup")) ?? {}; } catch { return {}; }
  },
  write(values) {
    try { localStorage.setItem("groundup", JSON.stringify({ ...this.read(), ...values })); } catch { /* private windows */ }
  },
};

function remember() {
  memory.write({
    prompt: prompt.value,
    compare: element("compare").checked,
    colour: element("colour").checked,
    settings: panes.map((pane) => pane.values()),
  });
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  element("theme").textContent = `Theme: ${theme}`;
  memory.write({ theme });
}

function setColour() {
  element("panes").classList.toggle("coloured", element("colour").checked);
}

element("form").addEventListener("submit", (event) => { event.preventDefault(); run(); });
element("stop").onclick = () => running?.abort();
element("compare").onchange = () => { arrange(); remember(); };
element("colour").onchange = () => { setColour(); remember(); };
element("key").onchange = connect;
element("theme").onclick = () => {
  const themes = ["system", "light", "dark"];
  setTheme(themes[(themes.indexOf(document.documentElement.dataset.theme) + 1) % themes.length]);
};
document.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); run(); }
  if (event.key !== "Escape") return;
  if (popover.matches(":popover-open")) { popover.origin?.focus(); popover.hidePopover(); } else running?.abort();
});
document.addEventListener("pointerdown", (event) => {
  if (!popover.contains(event.target) && !event.target.closest?.(".token") && popover.matches(":popover-open")) popover.hidePopover();
});

const saved = memory.read();
prompt.value = saved.prompt ?? "";
element("compare").checked = saved.compare ?? false;
element("colour").checked = saved.colour ?? true;
setTheme(saved.theme ?? "system");
setColour();
arrange(saved.settings ?? []);
connect();
