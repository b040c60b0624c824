"use strict";
// Keys, themes, prompts and live updates. Without it pages lack only prompts and live updates.
const root = document.documentElement;
root.classList.add("scripted");
if (window.top !== window) root.classList.add("framed"); // in the side-by-side view of an export, whose page has a bar
let store = null;
try { store = window.localStorage; } catch { /* storage is disabled */ }
const theme = store?.getItem("viva-theme");
if (theme === "light" || theme === "dark") root.dataset.theme = theme;

function switchTheme() {
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  try { store?.setItem("viva-theme", root.dataset.theme); } catch { /* as above */ }
}

// -- prompts: a turn has message numbers, the page has each message once ---------------------------------------------

function numbersOf(prompt) { // a prompt has only the numbers that an earlier one on the page has not
  const beside = [...document.querySelectorAll("details.prompt")].filter((one) => one.dataset.of === prompt.dataset.of);
  const byTurn = new Map(beside.map((one) => [one.dataset.turn, one]));
  const parts = [];
  let end = Infinity;
  for (let one = prompt; one && end > 0; one = byTurn.get(one.dataset.after)) {
    const shared = Number(one.dataset.shared ?? 0);
    if (end > shared) parts.push(one.dataset.messages.split(" ").filter(Boolean).slice(0, end - shared));
    end = Math.min(end, shared);
  }
  return parts.reverse().flat();
}

function fillPrompt(prompt) {
  if (prompt.dataset.filled) return;
  prompt.dataset.filled = "yes";
  const all = document.getElementById(prompt.dataset.of)?.children ?? [];
  const known = Number(prompt.dataset.known ?? 0);
  numbersOf(prompt).forEach((number, at) => {
    const message = all[Number(number)]?.cloneNode(true);
    if (!message) return;
    if (at < known) message.classList.add("known");
    else if (known) {
      const word = document.createElement("span");
      word.className = "fresh";
      word.textContent = "new";
      message.querySelector("b")?.after(" ", word);
    }
    prompt.append(message);
  });
}

document.addEventListener("toggle", (event) => {
  if (event.target.matches?.("details.prompt") && event.target.open) fillPrompt(event.target);
}, true);

async function copy(button) {
  const source = document.getElementById(button.dataset.copies);
  try {
    await navigator.clipboard.writeText(source.textContent);
    button.textContent = "Copied";
  } catch { // the browser forbids it: select the text instead
    getSelection().selectAllChildren(source);
    button.textContent = "Selected: copy with Ctrl-C";
  }
}

// -- keys ------------------------------------------------------------------------------------------------------------

const STOPS = ".turn, .row .item";

function move(step) {
  const stops = [...document.querySelectorAll(STOPS)];
  if (!stops.length) return;
  let at = stops.indexOf(document.activeElement?.closest?.(STOPS));
  if (at < 0) {
    const below = stops.findIndex((stop) => stop.getBoundingClientRect().top >= 0);
    at = step > 0 ? (below < 0 ? stops.length : below) - 1 : below < 0 ? stops.length : below;
  }
  const next = stops[Math.max(0, Math.min(stops.length - 1, at + step))];
  next.focus({ preventScroll: true });
  next.scrollIntoView({ block: next.offsetHeight > innerHeight / 2 ? "start" : "nearest" });
}

function toggle(list, open) {
  const all = [...list];
  const wanted = open ?? !all.some((one) => one.open);
  for (const one of all) one.open = wanted;
}

function follow(selector) {
  const link = document.querySelector(selector);
  if (link) location.href = link.href;
}

function current() {
  return document.activeElement?.closest?.(".turn") ?? document.querySelector(".turn:target") ?? document;
}

// -- runs over time: one mark of each history is in the tab order, arrow keys move -----------------------------------

function tabOnce() {
  for (const plot of document.querySelectorAll("svg.history")) {
    const marks = [...plot.querySelectorAll(".mark")];
    for (const mark of marks) mark.tabIndex = mark === marks.at(-1) ? 0 : -1;
  }
}

function showValue(mark, shown) {
  const value = mark.closest("li").querySelector(".value");
  value.textContent = mark.getAttribute("aria-label");
  value.hidden = !shown;
}

function moveMark(event) {
  const from = event.target.closest?.("svg.history .mark");
  if (!from || !/^(Arrow(Left|Right)|Home|End|Escape)$/.test(event.key)) return false;
  event.preventDefault();
  if (event.key === "Escape") { showValue(from, false); return true; }
  const marks = [...from.closest("svg").querySelectorAll(".mark")];
  const at = marks.indexOf(from);
  const to = marks[{ ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: marks.length - 1 }[event.key]];
  if (!to) return true; // at the ends no key leads to another page
  from.tabIndex = -1;
  to.tabIndex = 0;
  to.focus();
  return true;
}

document.addEventListener("refreshed", tabOnce);
for (const [kind, shown] of [["focusin", true], ["focusout", false]]) {
  document.addEventListener(kind, (event) => {
    const mark = event.target.closest?.("svg.history .mark");
    if (mark) showValue(mark, shown);
  });
}

const KEYS = {
  j: () => move(1),
  k: () => move(-1),
  ArrowLeft: () => follow('a[rel="prev"]'),
  ArrowRight: () => follow('a[rel="next"]'),
  u: () => follow('a[rel="up"]'),
  c: () => follow("a.compare"),
  p: () => toggle(current().querySelectorAll("details.prompt")),
  m: () => toggle(document.querySelectorAll("details.mark")),
  t: switchTheme,
  "/": () => document.querySelector('.find input')?.select() ?? document.querySelector('.find input')?.focus(),
  "?": () => document.getElementById("keys")?.showModal(),
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  if (moveMark(event)) return;
  const typing = event.target.matches?.("input:not([type=checkbox]), select, textarea");
  if (typing && event.key === "Escape") event.target.blur();
  if (typing || !Object.hasOwn(KEYS, event.key)) return;
  event.preventDefault();
  KEYS[event.key]();
});

// -- live updates ----------------------------------------------------------------------------------------------------

async function refresh(id) {
  const answer = await fetch(location.pathname + location.search);
  if (!answer.ok) return;
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const [now, then] = [page.getElementById(id), document.getElementById(id)];
  if (!now || !then) return;
  const open = [...then.querySelectorAll(".turn")].filter((turn) => turn.querySelector("details[open]")).length;
  const used = open || then.contains(document.activeElement) || then.querySelector("input[name=pick]:checked");
  if (used) return; // update later
  const scroll = then.querySelector(".scroll");
  const [left, top] = [scroll?.scrollLeft ?? 0, scroll?.scrollTop ?? 0];
  then.replaceChildren(...now.childNodes);
  then.querySelector(".scroll")?.scrollTo(left, top);
  const [says, said] = [page.getElementById("says"), document.getElementById("says")];
  if (says && said && !said.contains(document.activeElement)) said.replaceChildren(...says.childNodes);
  document.dispatchEvent(new Event("refreshed"));
}

function replace(part, html) {
  const open = [...part.querySelectorAll("details")].map((one) => one.open);
  const focused = part.contains(document.activeElement) ? document.activeElement : null;
  const kind = ["a", "summary", ".mark"].find((each) => focused?.matches(each));
  const at = kind ? [...part.querySelectorAll(kind)].indexOf(focused) : -1;
  part.innerHTML = html;
  part.querySelectorAll("details").forEach((one, number) => { one.open = open[number] ?? false; });
  tabOnce();
  if (!kind) return;
  const all = [...part.querySelectorAll(kind)];
  const same = kind === "a" ? all.find((one) => one.getAttribute("href") === focused.getAttribute("href")) : all[at];
  if (kind === ".mark" && same) for (const mark of same.parentElement.querySelectorAll(kind)) mark.tabIndex = mark === same ? 0 : -1;
  same?.focus({ preventScroll: true });
}

function say() { // a live region is read out only if its own text changes
  const [words, region] = [document.querySelector("[data-say]")?.dataset.say, document.getElementById("said")];
  if (region && words !== undefined && region.textContent !== words) region.textContent = words;
}

function listen() {
  const { events, part, place } = document.body.dataset;
  if (!events || !window.EventSource) return;
  let source = null;
  let waiting = false;
  const soon = () => {
    if (waiting) return;
    waiting = true;
    setTimeout(() => { waiting = false; refresh(part).catch(() => {}); }, 1000);
  };
  const open = () => {
    source = new EventSource(events);
    source.onmessage = (event) => {
      const news = JSON.parse(event.data);
      if (news.overview) replace(document.getElementById(part), news.overview);
      else if (news.part) { replace(document.getElementById(part), news.part); say(); }
      else if (news.reset || part === "list" || news.many || news.changed?.includes(place)) soon();
    };
  };
  // Browsers limit connections per server, so hidden pages close theirs.
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) { source?.close(); source = null; } else if (!source) { open(); soon(); }
  });
  window.addEventListener("pagehide", () => source?.close());
  open();
}

document.addEventListener("DOMContentLoaded", () => {
  document.getElementById("theme")?.addEventListener("click", switchTheme);
  document.getElementById("help")?.addEventListener("click", KEYS["?"]);
  for (const button of document.querySelectorAll("button.copy")) {
    button.addEventListener("click", () => copy(button));
  }
  const filters = document.getElementById("filters");
  if (filters && filters.dataset.local === undefined) {
    const send = () => {
      for (const field of filters.elements) field.disabled = field.name !== "" && field.value === "";
      filters.submit();
    };
    filters.addEventListener("change", send);
    window.addEventListener("pageshow", () => { for (const field of filters.elements) field.disabled = false; });
  }
  tabOnce();
  listen();
});
