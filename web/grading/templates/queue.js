// Queue of unsent grades. Each stays in the browser's storage until the server confirms it, under a unique name, so that
// sending it twice changes nothing.
"use strict";

class Submissions {
  // `changed({state, waiting, text, finished})`: state is saved, saving, away or refused.
  constructor({ store, base, form, changed }) {
    this.prefix = `${store}/`;
    this.base = base;
    this.form = form;
    this.changed = changed;
    this.memory = new Map(); // for entries that storage rejects
    this.sending = null;
    this.pause = 0;
    this.timer = 0;
    this.count = 0;
    this.again = false; // entries arrived while sending
    this.most = 20;
    addEventListener("online", () => this.send());
    addEventListener("beforeunload", (event) => { if (this.memory.size) event.preventDefault(); });
  }

  put(item) {
    this.count += 1;
    const random = crypto.getRandomValues(new Uint32Array(2));
    const name = `${Date.now().toString(36).padStart(9, "0")}-${this.count.toString(36).padStart(5, "0")}-${random[0].toString(36)}${random[1].toString(36)}`;
    const text = JSON.stringify({ ...item, name });
    try { localStorage.setItem(this.prefix + name, text); } catch { this.memory.set(this.prefix + name, text); }
    this.tell("saving");
    this.send();
  }

  waiting() {
    const found = new Map(this.memory);
    try {
      for (let place = 0; place < localStorage.length; place += 1) {
        const key = localStorage.key(place);
        if (key.startsWith(this.prefix)) found.set(key, localStorage.getItem(key));
      }
    } catch { /* no storage: what is in memory is all there is */ }
    const items = [];
    for (const key of [...found.keys()].sort()) {
      try { items.push({ key, item: JSON.parse(found.get(key)) }); } catch { this.drop(key); }
    }
    return items;
  }

  drop(key) {
    this.memory.delete(key);
    try { localStorage.removeItem(key); } catch { /* it is not there */ }
  }

  tell(state, text = "", finished = null) {
    this.changed({ state, waiting: this.waiting().length, text, finished });
  }

  // Send the queue; resolves when it is recorded or cannot be sent now.
  send() {
    this.again = this.sending !== null;
    this.sending ??= this.sendAll().finally(() => {
      this.sending = null;
      if (this.again) this.send();
    });
    return this.sending;
  }

  async sendAll() {
    clearTimeout(this.timer);
    try {
      let finished = null;
      for (;;) {
        const batch = this.waiting().slice(0, this.most);
        if (!batch.length) break;
        const answer = await this.post(batch);
        if (answer === null) return;
        finished = answer.finished ?? finished;
      }
      this.pause = 0;
      this.tell("saved", "", finished);
    } catch {
      this.pause = Math.min(3000, this.pause ? 2 * this.pause : 250);
      this.timer = setTimeout(() => this.send(), this.pause);
      this.tell("away");
    }
  }

  // Return the server's answer; null if it refuses for good.
  async post(batch, again = true) {
    const answer = await fetch(`${this.base}grades`, {
      method: "POST",
      headers: { "Content-Type": "application/json", Accept: "application/json" },
      body: JSON.stringify({ form: this.form, items: batch.map((one) => one.item) }),
      signal: AbortSignal.timeout(15000),
    });
    if (answer.status >= 500 || answer.status === 429) throw new Error(String(answer.status));
    const told = await answer.json();
    if (answer.ok) {
      for (const { key, item } of batch) {
        const problem = told.results[item.name];
        if (problem === undefined) continue;
        this.drop(key);
        if (problem.text) this.tell("refused", problem.text);
      }
      return told;
    }
    if (told.code === "form" && answer.status === 403 && again && (await this.renew())) return this.post(batch, false);
    if (answer.status === 400 || answer.status === 413) {
      if (batch.length > 1) this.most = 1;
      else this.drop(batch[0].key);
      this.tell("refused", told.text);
      return {};
    }
    this.tell("refused", told.text);
    return null;
  }

  // The link was opened again elsewhere: a page of the new session has the valid token.
  async renew() {
    const answer = await fetch(`${this.base}done`);
    if (!answer.ok) return false;
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    this.form = page.body.dataset.form ?? this.form;
    return true;
  }
}
