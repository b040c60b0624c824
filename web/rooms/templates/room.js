"use strict";
// Live updates, drafts that survive a reload or a lost connection, and sending. Pages and forms also work without it.
const page = document.body.dataset;
const LOOK = 2000, LOOK_HIDDEN = 10000, LOOK_EAGER = 400, EAGER_FOR = 30000, FIRST_WAIT = 500, LONGEST_WAIT = 8000, PATIENCE = 20000;
const KEPT_DAYS = 90, PREFIX = "viva-room ";
let store = null;
try { store = window.localStorage; } catch { /* a browser that keeps nothing */ }

const $ = (selector) => document.querySelector(selector);
const pause = (time) => new Promise((done) => setTimeout(done, time));

async function ask(address, form) {
  const options = { headers: { Accept: "application/json" }, signal: AbortSignal.timeout(PATIENCE) };
  if (form) Object.assign(options, { method: "POST", body: new URLSearchParams(form) });
  const response = await fetch(address, options);
  const data = response.status === 204 ? null : await response.json().catch(() => ({}));
  return { status: response.status, data };
}

function connected(yes) { $("#net").hidden = yes; }

// Call `look` repeatedly: less often while the page is hidden, more often for a while after an answer.
let eagerUntil = 0;
async function watching(look) {
  for (;;) {
    await pause(document.hidden ? LOOK_HIDDEN : performance.now() < eagerUntil ? LOOK_EAGER : LOOK);
    try { await look(); connected(true); } catch { connected(false); }
  }
}
document.addEventListener("visibilitychange", () => { if (!document.hidden) showAges(); });

// -- times -----------------------------------------------------------------------------------------------------------

function waited(seconds) {
  for (const [unit, size] of [["day", 86400], ["h", 3600], ["min", 60]]) {
    const count = Math.floor(seconds / size);
    if (count >= 1) return `${count} ${unit}${unit === "day" && count > 1 ? "s" : ""}`;
  }
  return "< 1 min";
}

function showAges() {
  const now = performance.now() / 1000;
  for (const one of document.querySelectorAll("[data-age]")) {
    one.began ??= now - Number(one.dataset.age);
    one.textContent = waited(now - one.began);
  }
  for (const one of document.querySelectorAll("time[data-at]")) {
    const at = new Date(Number(one.dataset.at) * 1000);
    one.textContent = at.toLocaleString([], { dateStyle: "medium", timeStyle: "short" });
  }
}
showAges();
setInterval(showAges, 15000);

// -- the list --------------------------------------------------------------------------------------------------------

function keepListed() {
  let seen = page.fingerprint;
  const place = $("#waiting"), name = document.title;
  const title = () => {
    const count = Number(place.querySelector("[data-count]").dataset.count);
    document.title = count ? `(${count}) ${name}` : name;
  };
  title();
  watching(async () => {
    const { status, data } = await ask(`${page.base}/waiting?seen=${seen}`);
    if (status === 403) location.reload();
    if (status !== 200) return;
    const focused = document.activeElement?.getAttribute("href");
    place.innerHTML = data.html;
    seen = data.fingerprint;
    if (focused) [...place.querySelectorAll("a")].find((link) => link.getAttribute("href") === focused)?.focus();
    title();
    showAges();
  });
}

// -- drafts ----------------------------------------------------------------------------------------------------------

const key = `${PREFIX}${page.base} ${page.name}`;

function read(which) {
  try { return JSON.parse(store?.getItem(which) ?? "null"); } catch { return null; }
}

function forgetOld() {
  for (const which of Object.keys(store ?? {})) {
    if (which.startsWith(PREFIX) && Date.now() - (read(which)?.at ?? 0) > KEPT_DAYS * 86400000) store.removeItem(which);
  }
}

function values(form) {
  const found = {};
  for (const [name, value] of new FormData(form)) if (name !== "token") found[name] = value;
  return found;
}

function fill(form, given) {
  for (const field of form.elements) {
    if (!field.name || field.name === "token" || !(field.name in given)) continue;
    if (field.type === "radio") field.checked = field.value === given[field.name];
    else field.value = given[field.name];
  }
}

function grow(area) {
  area.style.height = "auto";
  area.style.height = `${area.scrollHeight + 2}px`;
}

function countWords() {
  const hint = $("#hint");
  if (!hint) return;
  const text = $("[name=text]").value.trim(), count = text ? text.split(/\s+/).length : 0, most = Number(hint.dataset.words);
  hint.textContent = count ? `${count} of about ${most} words` : `at most about ${most} words`;
  hint.classList.toggle("over", count > most);
}

// -- one request -----------------------------------------------------------------------------------------------------

function keepRequest() {
  const form = $("#answer"), after = $("#after");
  const state = { now: page.state, sent: false, busy: false };
  try { state.sent = sessionStorage.getItem(key) === "sent"; } catch { /* as above */ }

  const say = (text, bad = false) => {
    const place = $("#status");
    place.hidden = !text;
    place.textContent = text;
    place.classList.toggle("bad", bad);
  };
  const tell = (text, busy = false) => {
    after.hidden = false;
    after.querySelector(".said").textContent = text;
    after.classList.toggle("busy", busy);
  };
  const save = (sending = false) => {
    try {
      store?.setItem(key, JSON.stringify({ values: values(form), sending, at: Date.now() }));
    } catch { say("This browser cannot save drafts.", true); }
  };
  const forget = () => { try { store?.removeItem(key); } catch { /* as above */ } };

  function show(errors) {
    for (const place of form.querySelectorAll(".error")) place.hidden = true;
    let first = null;
    for (const [name, text] of Object.entries(errors)) {
      const place = [...form.querySelectorAll("[data-field], [data-error]")]
        .find((one) => (one.dataset.field ?? one.dataset.error) === name);
      const line = place?.classList.contains("error") ? place : place?.querySelector(".error");
      if (!line) { say(text, true); continue; }
      line.textContent = text;
      line.hidden = false;
      first ??= place;
    }
    const field = first?.querySelector("input, select, textarea") ?? first?.previousElementSibling?.querySelector("textarea");
    field?.focus();
    first?.scrollIntoView({ block: "center" });
  }

  function arrived(receipt) {
    state.busy = false;
    if (receipt === "withdrawn" || receipt === "expired") { state.now = receipt; release(); ended(); return; }
    forget();
    state.sent = true;
    state.now = "answered";
    try { sessionStorage.setItem(key, "sent"); } catch { /* as above */ }
    if (receipt === "late") {
      tell("Somebody else answered first, and the first answer counts. Yours is stored as well.");
    } else {
      const own = values(form);
      if (own.text && (own.way ?? "text") === "text") addTurn(own.text);
      tell("Your answer was received. Waiting for the next question", true);
    }
    form.hidden = true;
    after.scrollIntoView({ block: "nearest" });
    eagerUntil = performance.now() + EAGER_FOR;
    look().catch(() => connected(false));
  }

  function addTurn(text) {
    const turn = document.createElement("div"), who = document.createElement("p"), said = document.createElement("div");
    const written = document.createElement("pre");
    turn.className = "turn own"; who.className = "role"; said.className = "text"; written.className = "written";
    who.textContent = "You";
    written.textContent = text;
    said.append(written);
    turn.append(who, said);
    $(".talk").append(turn);
  }

  function ended() {
    const own = state.now === "withdrawn"
      ? "This question was withdrawn: an answer is no longer needed."
      : "The time for this question is over, and the run continued without an answer.";
    tell(`${own} If the question is asked again, your text will still be here.`);
    form.hidden = true;
  }

  function release() {
    form.inert = false;
    $("#send").disabled = false;
    $("#send").textContent = "Send";
    say("");
  }

  async function send() {
    if (state.busy) return;
    state.busy = true;
    save(true);
    form.inert = true;
    $("#send").disabled = true;
    $("#send").textContent = "Sending…";
    show({});
    for (let wait = FIRST_WAIT, renewed = false; ; wait = Math.min(2 * wait, LONGEST_WAIT)) {
      let answer = null;
      try { answer = await ask(form.action, new FormData(form)); } catch { /* no connection */ }
      connected(answer !== null);
      if (answer === null || answer.status >= 500) {
        say(answer === null
          ? "No connection. Your answer is kept in this browser, and sent as soon as the connection is back."
          : "The server cannot accept your answer at the moment. It is kept and will be sent again.", true);
        await Promise.race([pause(wait), new Promise((back) => addEventListener("online", back, { once: true }))]);
        continue;
      }
      if (answer.status === 200) { arrived(answer.data.receipt); return; }
      if (answer.status === 403 && answer.data.code === "form" && !renewed) {
        renewed = true;
        const found = await ask(`${form.action}/state`).catch(() => null);
        if (found?.status === 200) { form.elements.token.value = found.data.token; continue; }
      }
      state.busy = false;
      release();
      save();
      if (answer.status === 422) show(answer.data.errors);
      else say(`${answer.data.title ?? "Not accepted"}. ${answer.data.text ?? ""}`, true);
      return;
    }
  }

  async function look() {
    const { status, data } = await ask(`${page.base}/q/${page.name}/state`);
    if (status !== 200 || state.busy) return;
    if (form) form.elements.token.value = data.token;
    const link = after.querySelector(".others");
    link.textContent = data.others ? `${data.others} other ${data.others === 1 ? "question" : "questions"}` : "All questions";
    if (state.now !== data.state && form && !state.sent) {
      state.now = data.state;
      if (data.state === "waiting") { form.hidden = false; after.hidden = true; release(); }
      else if (data.state === "answered") {
        $("#send").disabled = true;
        tell(`${data.who || "Somebody"} has answered this question. Your text stays below if you want to copy it.`);
      } else ended();
    }
    if (data.state !== "answered") return;
    if (data.next && state.sent) location.replace(`${page.base}/q/${data.next}`);
    else if (data.next) { link.href = `${page.base}/q/${data.next}`; link.textContent = "Next question in this conversation"; }
    else if (state.sent && !data.attended) tell("Your answer was received. No run is asking questions at the moment; your answer is used when the run is resumed.");
  }

  if (form) {
    const draft = read(key);
    if (draft) fill(form, draft.values ?? {});
    if (!draft?.sending) for (const area of form.querySelectorAll("textarea")) grow(area);
    let later = 0;
    form.addEventListener("input", (event) => {
      if (event.target.matches("textarea")) grow(event.target);
      clearTimeout(later);
      later = setTimeout(save, 250);
      countWords();
    });
    addEventListener("pagehide", () => { if (!state.busy && !state.sent && later) save(); });
    form.addEventListener("submit", (event) => { event.preventDefault(); send(); });
    form.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !event.isComposing) { event.preventDefault(); send(); }
    });
    if (/Mac|iPhone|iPad/.test(navigator.platform)) $(".chord").textContent = "⌘";
    countWords();
    const field = $("[name=text]");
    if (state.now === "waiting" && field && matchMedia("(pointer: fine)").matches) field.focus({ preventScroll: true });
    if ($(".talk[data-later] > .turn")) { // returning readers continue at the end
      [...document.querySelectorAll(".talk > .turn")].at(-1).scrollIntoView({ block: "start" });
    }
    if (draft?.sending && state.now !== "answered") send();
  }
  if (state.sent && state.now === "answered") after.classList.add("busy");
  watching(look);
}

forgetOld();
if (page.page === "room") keepListed();
if (page.page === "request") keepRequest();
