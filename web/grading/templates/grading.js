// A grader's page: keys, grades saved immediately, and the next question without a page load.
"use strict";
(() => {
  document.documentElement.classList.add("scripted");
  const MOST_UNDO = 200;
  const COMMENT_PAUSE = 500; // milliseconds without typing
  const given = new Map(); // "question/position": the current grade and comment
  const pages = new Map(); // question: its page, while this one is open
  const followers = new Map(); // question: the one after it
  const newly = new Set(); // questions finished since the server counted
  let submissions, page, question, answers, finished = 0, current = 0, wanted = null, fetching = null;

  const all = (selector, under = document) => [...under.querySelectorAll(selector)];
  const one = (selector, under = document) => under.querySelector(selector);
  const keyOf = (place) => `${question}/${answers[place].dataset.position}`;
  const valueOf = (text) => (text === "" ? null : Number(text));
  const graded = (place) => given.get(keyOf(place)).value !== null;
  const complete = () => answers.length > 0 && answers.every((answer, place) => graded(place));

  // -- display -------------------------------------------------------------------------------------------------

  function arrive() {
    page = one("#page");
    question = page?.dataset.question;
    answers = all(".answer");
    answers.forEach((answer, place) => {
      const key = keyOf(place);
      if (!given.has(key)) {
        given.set(key, { value: valueOf(one("input:checked", answer)?.value ?? ""), comment: one("textarea", answer).value });
      }
    });
    answers.forEach((answer, place) => paint(place));
    if (question !== undefined) {
      if (page.dataset.after) followers.set(question, page.dataset.after);
      if (page.dataset.before && !followers.has(page.dataset.before)) followers.set(page.dataset.before, question);
      const open = answers.findIndex((answer, place) => !graded(place));
      choose(Math.max(0, open), { scroll: false });
      if (open > 0) reveal(answers[open]);
    }
    count();
  }

  function paint(place) {
    const { value, comment } = given.get(keyOf(place));
    const answer = answers[place];
    for (const input of all("input[type=radio]", answer)) input.checked = valueOf(input.value) === value;
    const field = one("textarea", answer);
    if (field.value !== comment) field.value = comment;
    if (comment) one(".comment", answer).open = true;
    answer.classList.toggle("graded", value !== null);
    one(".mark", answer).textContent = value === null ? "" : `✓ ${value}`;
    one("#next")?.classList.toggle("first", complete());
  }

  function count() {
    const shown = one("#finished");
    if (!shown) return;
    const number = finished + newly.size;
    shown.textContent = number;
    one(".progress .bar").value = number;
  }

  function choose(place, { scroll = true } = {}) {
    if (!answers.length) return;
    current = Math.min(Math.max(place, 0), answers.length - 1);
    answers.forEach((answer, number) => answer.classList.toggle("current", number === current));
    answers[current].focus({ preventScroll: true });
    if (scroll) reveal(answers[current]);
  }

  function reveal(element) {
    const top = one(".top").offsetHeight + 12;
    const box = element.getBoundingClientRect();
    const room = innerHeight - top - 12;
    if (box.top < top || box.height > room) scrollBy({ top: box.top - top });
    else if (box.bottom > top + room) scrollBy({ top: box.bottom - top - room });
  }

  function tell(text) {
    const told = one("#told");
    told.textContent = text;
    told.hidden = !text;
  }

  function showState({ state, waiting, text, finished: counted }) {
    const saved = one("#saved");
    saved.dataset.state = state;
    saved.textContent = {
      saved: "Saved",
      saving: "Saving…",
      away: `Offline, unsent grades: ${waiting}`,
      refused: waiting ? `Unsent grades: ${waiting}` : "Saved",
    }[state];
    if (text) tell(`${text}${waiting ? ` ${waiting} of your grades are kept in this browser.` : ""}`);
    if (state === "saved") {
      if (counted !== null) { finished = counted; newly.clear(); count(); }
      if (wanted !== null) { const path = wanted; wanted = null; tell(""); go(path); }
    }
  }

  // -- grades --------------------------------------------------------------------------------------------------

  function change(place, after, { remember = true } = {}) {
    const key = keyOf(place);
    const before = given.get(key);
    if (before.value === after.value && before.comment === after.comment) return;
    given.set(key, after);
    if (remember) push({ key, ...before });
    paint(place);
    if (complete()) newly.add(question); else newly.delete(question);
    count();
    submissions.put({ question: Number(question), position: Number(answers[place].dataset.position), value: after.value, comment: after.comment, seal: page.dataset.seal });
    if (after.value !== null) lookAhead();
  }

  function grade(place, value) {
    const was = graded(place);
    flush();
    change(place, { ...given.get(keyOf(place)), value });
    if (was) return;
    const following = [...answers.keys()].slice(place + 1).find((number) => !graded(number));
    const open = following ?? answers.findIndex((answer, number) => !graded(number));
    if (open >= 0) choose(open);
    else reveal(one("#next"));
  }

  let pausing = 0;
  function typed(place) {
    clearTimeout(pausing);
    pausing = setTimeout(() => comment(place), COMMENT_PAUSE);
  }

  function comment(place) {
    change(place, { ...given.get(keyOf(place)), comment: one("textarea", answers[place]).value });
  }

  function flush() {
    clearTimeout(pausing);
    if (question !== undefined) answers.forEach((answer, place) => comment(place));
  }

  function undoable() {
    try { return JSON.parse(sessionStorage.getItem(`${document.body.dataset.store}-undo`)) ?? []; } catch { return []; }
  }

  function keep(entries) {
    try { sessionStorage.setItem(`${document.body.dataset.store}-undo`, JSON.stringify(entries.slice(-MOST_UNDO))); } catch { /* undo ends with the page */ }
  }

  function push(entry) { keep([...undoable(), entry]); }

  async function undo() {
    flush();
    const entries = undoable();
    const entry = entries.at(-1);
    if (!entry) return tell("There is nothing to undo.");
    const [at, position] = entry.key.split("/");
    if (at !== question && !(await go(`q/${at}`))) return undefined;
    const place = answers.findIndex((answer) => answer.dataset.position === position);
    keep(entries.slice(0, -1));
    if (place < 0) return undefined;
    change(place, { value: entry.value, comment: entry.comment }, { remember: false });
    choose(place);
    return undefined;
  }

  // -- navigation ----------------------------------------------------------------------------------------------

  const following = () => (followers.has(question) ? `q/${followers.get(question)}` : `next?after=${question}`);

  // Return a page's text and address, cached or from the server. Throws without a connection.
  async function fetched(path) {
    const number = /^q\/(\d+)$/.exec(path)?.[1];
    if (pages.has(number)) return { text: pages.get(number), url: document.body.dataset.base + path };
    if (submissions.waiting().length) await submissions.send(); // the next question depends on what is finished
    const answer = await fetch(document.body.dataset.base + path, { headers: { Accept: "text/html" }, signal: AbortSignal.timeout(15000) });
    if (answer.status >= 500) throw new Error(String(answer.status));
    const text = await answer.text();
    const found = /\/q\/(\d+)$/.exec(new URL(answer.url).pathname)?.[1];
    if (answer.ok && found) pages.set(found, text);
    const from = /^next\?after=(\d+)$/.exec(path)?.[1];
    if (answer.ok && found && from) followers.set(from, found);
    return { text, url: answer.url, found, refused: !answer.ok };
  }

  async function go(path, { push: pushing = true } = {}) {
    flush();
    tell("");
    let got;
    try {
      got = await fetched(path);
    } catch {
      wanted = path;
      tell("No connection. Your grades are kept in this browser; the question loads when the connection is back.");
      submissions.send();
      if (!submissions.waiting().length) setTimeout(() => { if (wanted === path) { wanted = null; go(path); } }, 1000);
      return false;
    }
    if (got.refused && submissions.waiting().length) {
      submissions.send();
      return false;
    }
    const other = new DOMParser().parseFromString(got.text, "text/html");
    if (!one("main", other) || got.refused) { location.assign(got.url); return false; }
    one("main").replaceWith(document.adoptNode(one("main", other)));
    document.title = other.title;
    if (pushing) history.pushState(null, "", got.url);
    scrollTo(0, 0);
    arrive();
    return true;
  }

  // Prefetch the next question, so that it shows at once, even without a connection.
  function lookAhead() {
    if (fetching === question) return;
    const from = question;
    fetching = from;
    fetched(following()).catch(() => { if (fetching === from) fetching = null; });
  }

  const forward = () => go(following());
  function back() {
    const before = page.dataset.before ?? [...followers].find(([, after]) => after === question)?.[0];
    if (before) go(`q/${before}`);
  }

  // -- keys ----------------------------------------------------------------------------------------------------

  function isTyping(target) { return target instanceof HTMLTextAreaElement || (target instanceof HTMLInputElement && target.type === "text"); }

  function keyed(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
    if (isTyping(event.target)) {
      if (event.key === "Escape") { flush(); choose(current); event.preventDefault(); }
      return;
    }
    if (one("#keys")?.open) return;
    if (question === undefined) return;
    if (act(event)) event.preventDefault();
  }

  // Return true if a key had an effect.
  function act(event) {
    const digit = /^(?:Digit|Numpad)(\d)$/.exec(event.code)?.[1];
    const grades = all("input[data-key]", answers[current]);
    const chosen = grades.find((input) => input.dataset.key === event.key) ?? grades.find((input) => !event.shiftKey && input.dataset.key === digit);
    if (chosen) { grade(current, valueOf(chosen.value)); return true; }
    switch (event.key) {
      case "ArrowDown": if (!scrolled(1)) choose(current + 1); return true;
      case "ArrowUp": if (!scrolled(-1)) choose(current - 1); return true;
      case "j": choose(current + 1); return true;
      case "k": choose(current - 1); return true;
      case "ArrowRight": forward(); return true;
      case "ArrowLeft": back(); return true;
      case "Enter": if (event.target.closest("a, button, summary") || !complete()) return false; forward(); return true;
      case "c": one(".comment", answers[current]).open = true; one("textarea", answers[current]).focus(); return true;
      case "u": undo(); return true;
      case "x": { const fold = one(".unfold input", answers[current]); if (fold) fold.checked = !fold.checked; return true; }
      case "?": one("#keys").showModal(); return true;
      default: return false;
    }
  }

  // Scroll through an answer taller than the window before going to the next one.
  function scrolled(way) {
    const box = answers[current].getBoundingClientRect();
    const top = one(".top").offsetHeight;
    const rest = way > 0 ? box.bottom - innerHeight : top - box.top;
    if (box.height < innerHeight - top || rest < 8) return false;
    scrollBy({ top: way * Math.min(rest + 16, 0.7 * innerHeight) });
    return true;
  }

  // -- start ---------------------------------------------------------------------------------------------------

  function begin() {
    const { store, base, form } = document.body.dataset;
    submissions = new Submissions({ store, base, form, changed: showState });
    for (const { item } of submissions.waiting()) {
      given.set(`${item.question}/${item.position}`, { value: item.value, comment: item.comment });
    }
    finished = Number(one("#page").dataset.finished ?? 0);
    arrive();
    submissions.send();
    document.addEventListener("keydown", keyed);
    document.addEventListener("change", (event) => {
      const answer = event.target.closest?.(".answer");
      if (answer && event.target.type === "radio") {
        current = answers.indexOf(answer);
        flush();
        change(current, { ...given.get(keyOf(current)), value: valueOf(event.target.value) });
        choose(current, { scroll: false });
      }
    });
    document.addEventListener("input", (event) => {
      if (event.target instanceof HTMLTextAreaElement) typed(answers.indexOf(event.target.closest(".answer")));
    });
    document.addEventListener("focusout", (event) => { if (event.target instanceof HTMLTextAreaElement) flush(); });
    document.addEventListener("focusin", (event) => {
      const place = answers.indexOf(event.target.closest?.(".answer"));
      if (place >= 0 && place !== current) {
        current = place;
        answers.forEach((answer, number) => answer.classList.toggle("current", number === current));
      }
    });
    document.addEventListener("submit", (event) => { if (event.target.method !== "dialog") event.preventDefault(); });
    document.addEventListener("click", (event) => {
      const target = event.target.closest?.("#next, #previous, #help");
      if (target?.id === "help") one("#keys")?.showModal();
      else if (target && !event.ctrlKey && !event.metaKey && !event.shiftKey) {
        event.preventDefault();
        if (target.id === "next") forward(); else back();
      } else if (!event.target.closest?.("a, button, summary, label, textarea, input")) {
        const place = answers.indexOf(event.target.closest?.(".answer"));
        if (place >= 0) choose(place, { scroll: false });
      }
    });
    addEventListener("pagehide", flush);
    addEventListener("popstate", () => {
      const path = location.pathname.slice(base.length);
      if (/^q\/\d+$/.test(path) && !location.search) go(path, { push: false });
      else location.reload();
    });
  }

  document.addEventListener("DOMContentLoaded", begin);
})();
