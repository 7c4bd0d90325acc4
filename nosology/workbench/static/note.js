// The note page: selection of a code, its evidence, decisions by keys and clicks.
import { isShortcut, say } from "./app.js";
import { isEmpty, isStuck, onAnswer, post, waitingCodes, whenStuck } from "./outbox.js";

const note = document.getElementById("note");
const reasons = document.getElementById("reasons");
const book = document.getElementById("book");
let now = null; // key of the selected code, such as icd10cm:I50.9
let shown = -1; // index of the evidence in view
let marked = null; // selected characters of the note, {start, end}
const pressed = []; // keys pressed while a decision is sent: they apply to the code that is selected afterwards

export const panel = () => document.getElementById("panel");
const cards = () => [...panel().querySelectorAll(".card")]; // chosen, open, then rejected ones, whose list may be closed
const card = (key) => panel().querySelector(`.card[data-key="${CSS.escape(key)}"]`);
const closed = () => ["done", "preaccepted", "closed"].includes(panel().dataset.status);

/** Selects a code: its card, and its evidence in the note. jump: to its evidence. scroll: to its card. */
export function select(key, { focus = true, jump = true, scroll = true } = {}) {
  now = key;
  shown = -1;
  for (const other of panel().querySelectorAll(".card")) {
    other.classList.toggle("now", other.dataset.key === key);
    other.tabIndex = other.dataset.key === key ? 0 : -1;
    other.querySelector("[data-stop]")?.setAttribute("tabindex", other.tabIndex); // of a group of buttons in the card
  }
  for (const piece of note.querySelectorAll("[data-k]")) {
    piece.classList.toggle("on", key !== null && piece.dataset.k.split(" ").includes(key));
    piece.classList.remove("at");
  }
  const chosen = key === null ? null : card(key);
  chosen?.closest("details")?.setAttribute("open", "");
  if (chosen && focus) chosen.focus({ preventScroll: true });
  if (chosen && chosen === cards()[0]) panel().scrollTop = 0; // show what is above the first code, if there is room
  if (chosen && scroll) chosen.scrollIntoView({ block: "nearest" });
  if (jump) place(1, false);
}

/** Scrolls to the next or previous evidence of the selected code. */
function place(step, aloud = true) {
  const places = [...note.querySelectorAll("[data-k].on")];
  if (!places.length) return aloud && say("This note has no evidence for the code.");
  places.forEach((piece) => piece.classList.remove("at"));
  if (shown < 0) shown = Math.max(0, places.findIndex((piece) => !piece.closest("[hidden]"))) - step; // first in the document in view
  shown = (shown + step + places.length) % places.length;
  const at = places[shown];
  at.classList.add("at");
  showInNote(at);
  if (aloud) say(`Evidence ${shown + 1} of ${places.length}: ${at.textContent}${at.title ? ", " + at.title : ""}`);
}

/** Scrolls the note to a piece of its text; the page stays, so that the card in focus stays in view. */
export function showInNote(piece) {
  piece.dispatchEvent(new CustomEvent("reveal", { bubbles: true })); // documents.js shows its document
  const { top, height } = piece.getBoundingClientRect();
  note.scrollTop += top + height / 2 - note.getBoundingClientRect().top - note.clientHeight / 2;
}

function move(step) {
  const all = cards();
  if (!all.length) return;
  const at = all.findIndex((item) => item.dataset.key === now);
  select(all[at < 0 ? (step > 0 ? 0 : all.length - 1) : Math.min(all.length - 1, Math.max(0, at + step))].dataset.key);
}

/** Sends a decision; the answer replaces the panel. words: what is said then, or a function that returns it. */
export function decide(values, words) {
  const before = cards().map((item) => item.dataset.key);
  said = { words, before, at: before.indexOf(values.code ?? now), key: now };
  const answered = post(panel().dataset.note, panel().dataset.version, values);
  if (isStuck()) setAside();
  return answered;
}
let said = null; // what the user was told to expect of the last decision

onAnswer(({ item, html, refusal }) => {
  if (item.note !== panel().dataset.note) return refusal && say(`A decision on another note was not saved: ${refusal}`, "error");
  const typing = document.activeElement?.id === "find";
  if (html) htmx.swap(panel(), html, { swapStyle: "outerHTML", swapDelay: 0, settleDelay: 0 });
  document.getElementById("message")?.scrollIntoView({ block: "nearest" });
  if (refusal) pressed.length = 0; // they were meant for another state
  if (!refusal) say(typeof said?.words === "function" ? said.words() : said?.words ?? "saved");
  else if (!html) say(refusal, "error"); // else the panel says it
  choose(item.values, Boolean(refusal), !typing);
  while (isEmpty() && pressed.length) act(pressed.shift());
});

/** While the server cannot be reached, the next open code is selected, so that further decisions wait in the outbox. */
function setAside() {
  for (const key of waitingCodes(panel().dataset.note)) if (key && card(key)?.dataset.state === "open") card(key).dataset.state = "waiting";
  const all = cards(), at = all.findIndex((item) => item.dataset.key === now);
  const next = card(now)?.dataset.state === "waiting" ? [...all.slice(at + 1), ...all].find((item) => item.dataset.state === "open") : null;
  if (next) select(next.dataset.key, { focus: document.activeElement?.id !== "find" });
}
whenStuck(() => {
  setAside();
  while (pressed.length) act(pressed.shift());
});

/** Selects the next open code after a decision, or stays at this one. */
function choose(values, failed, focus) {
  const { before = [], at = -1 } = said ?? {};
  const stays = (failed && card(now)?.dataset.state === "open") || ["order", "poa", "evidence", "unmark", "assign", "clear", "claim", "accept_all", "poa_all", "undo"].includes(values.action);
  const next = before.slice(at + 1).find((key) => card(key)?.dataset.state === "open");
  const target = stays ? now : values.to ?? (values.action === "add" ? values.code : next);
  if (target && card(target)) select(target, { focus, jump: !stays });
  else if (cards().length) select(cards().find((item) => item.dataset.state === "open")?.dataset.key ?? cards()[0].dataset.key, { focus, jump: false });
}

function order(key, step) {
  const keys = [...panel().querySelectorAll(".chosen .card")].map((item) => item.dataset.key);
  const from = keys.indexOf(key);
  const to = step === "first" ? 0 : Math.min(keys.length - 1, Math.max(0, from + step));
  if (from < 0 || from === to) return;
  keys.splice(to, 0, keys.splice(from, 1)[0]);
  decide({ action: "order", codes: JSON.stringify(keys) }, `${name(key)} is number ${to + 1}`);
}

export const name = (key) => key.split(":")[1];

function openBook(key, instead = "") {
  const [system, code] = key.split(":");
  document.getElementById("book-page").replaceChildren();
  turn(`/codes/${system}/${encodeURIComponent(code)}`, instead);
  if (!book.open) book.showModal();
}
/** Shows a page of the code book, with the code set of the encounter's date; for a change, siblings that fit stand first. */
async function turn(path, instead) {
  const query = new URLSearchParams({ instead_of: instead, day: panel().dataset.day, ...(instead && { note: panel().dataset.note }) });
  await htmx.ajax("GET", `${path}?${query}`, { target: "#book-page", swap: "innerHTML" });
  if (!book.querySelector("h2")) return book.close(); // there is no such page, as a message says
  (book.querySelector(".offer") ?? book.querySelector(".acts button") ?? book.querySelector("a"))?.focus();
}

export const ACTS = {
  accept: (key) => decide({ action: "accept", code: key }, `${name(key)} accepted`),
  reject: (key) => { reasons.dataset.code = key; document.getElementById("reasons-title").textContent = `Why is ${name(key)} wrong?`; reasons.showModal(); reasons.querySelector("[data-reason]").focus(); },
  change: (key) => openBook(key, key),
  book: (key) => openBook(key, card(key) ? key : ""),
  claim: () => decide({ action: "claim" }, "the proposed claim is accepted"),
  point: (_, from) => reveal(Number(from.dataset.start), "[data-k]"),
  clear: (key) => decide({ action: "clear", code: key }, `${name(key)} is open again`),
  undo: () => decide({ action: "undo" }, "the last decision is undone"),
  unmark: (key, from) => decide({ action: "unmark", code: key, start: from.dataset.start, end: from.dataset.end }, `evidence of ${name(key)} removed`).then((saved) => saved && unpaint(key, from)),
  override: (_, from) => decide({ action: from.dataset.action, override: document.getElementById("override").value }, status),
  up: (key) => order(key, -1),
  down: (key) => order(key, 1),
  principal: (key) => order(key, "first"),
  show: (key, from) => { select(key, { jump: false }); reveal(Number(from.dataset.start)); },
  add: (key) => { remember(); book.close(); clearSearch(); decide({ action: "add", code: key, ...(marked ?? {}) }, `${name(key)} added`); forget(); },
  swap: (key, from) => { book.close(); decide({ action: "change", code: from.dataset.code, to: from.dataset.to }, `changed to ${name(from.dataset.to)}`); },
  evidence: (key) => {
    remember();
    if (!marked) return say("Select text of the note first: press m, or use the mouse.");
    decide({ action: "evidence", code: key, ...marked }, `text marked as evidence of ${name(key)}`).then((saved) => saved && paint(key));
  },
  assign: (_, from) => decide({ action: "assign", assignee: from.value }, "assigned"),
  take: () => decide({ action: "assign", assignee: panel().dataset.me }, "assigned to you"),
  turn: (_, from) => { const here = new URL(from.href); const back = book.querySelector('[data-act="swap"]')?.dataset.code; turn(here.pathname, back ?? ""); },
};
/** Says the status that the answer of the server shows: who finishes a note whose second review is due has not ended it. */
const status = () => `Encounter: ${panel().querySelector(".bar .chip").textContent}`;
for (const act of ["hold", "resume", "second", "finish", "approve", "reopen"]) ACTS[act] = () => decide({ action: act }, status);

function clearSearch() {
  const find = document.getElementById("find");
  sessionStorage.removeItem(`find ${note.dataset.note}`);
  if (find) { find.value = ""; document.getElementById("hits").replaceChildren(); }
}

/** Highlights text that was just marked as evidence, without loading the note again. */
function paint(key) {
  if (!marked) return;
  for (const piece of [...note.querySelectorAll("[data-s]")]) {
    const start = Number(piece.dataset.s), text = [...piece.textContent];
    const from = Math.max(0, marked.start - start), to = Math.min(text.length, marked.end - start);
    if (from >= to) continue;
    const parts = [[0, from], [from, to], [to, text.length]].filter(([a, b]) => a < b).map(([a, b]) => {
      const part = piece.cloneNode();
      part.dataset.s = start + a;
      part.textContent = text.slice(a, b).join("");
      if (a === from) part.dataset.k = [...new Set([...(piece.dataset.k ?? "").split(" "), key])].filter(Boolean).join(" ");
      return part;
    });
    piece.replaceWith(...parts);
  }
  forget();
  select(key, { jump: false });
}

/** Takes the highlight of removed evidence away, without loading the note again. */
function unpaint(key, { dataset }) {
  for (const piece of note.querySelectorAll("[data-k]")) {
    const start = Number(piece.dataset.s);
    if (start < Number(dataset.start) || start >= Number(dataset.end)) continue;
    piece.dataset.k = piece.dataset.k.split(" ").filter((other) => other !== key).join(" ");
    if (!piece.dataset.k) delete piece.dataset.k;
  }
  select(key, { jump: false });
}

function reveal(start, among = "[data-k].on") {
  const piece = [...note.querySelectorAll(among)].find((item) => Number(item.dataset.s) >= start);
  note.querySelectorAll(".at").forEach((item) => item.classList.remove("at"));
  piece?.classList.add("at");
  if (piece) showInNote(piece);
}

document.addEventListener("click", (event) => {
  const from = event.target.closest("[data-act]");
  if (from && !["SELECT", "OPTION"].includes(event.target.tagName) && from.tagName !== "SELECT") {
    event.preventDefault();
    const key = from.dataset.code ?? from.closest(".card")?.dataset.key ?? now;
    return ACTS[from.dataset.act](key, from);
  }
  const reason = event.target.closest("[data-reason]");
  if (reason) return reject(reason.dataset.reason);
  const clicked = event.target.closest(".card");
  if (clicked && !event.target.closest("select, label")) return select(clicked.dataset.key, { focus: false });
  const words = event.target.closest("[data-k]");
  if (words && getSelection().isCollapsed) {
    const keys = words.dataset.k.split(" ").filter((key) => card(key) && (card(key).dataset.state !== "rejected" || card(key).offsetParent));
    if (keys.length) select(keys[(keys.indexOf(now) + 1) % keys.length], { jump: false });
  }
});
document.addEventListener("change", (event) => {
  const from = event.target.closest("select[data-act]");
  if (from) ACTS[from.dataset.act](from.closest(".card")?.dataset.key ?? now, from);
});

function reject(reason) {
  const code = reasons.dataset.code;
  reasons.close();
  decide({ action: "reject", code, reason }, `${name(code)} rejected`);
}
reasons.addEventListener("keydown", (event) => {
  const buttons = reasons.querySelectorAll("[data-reason]");
  if (/^[1-9]$/.test(event.key) && buttons[event.key - 1]) { event.preventDefault(); reject(buttons[event.key - 1].dataset.reason); }
});

/** The elements of the document in view that match a selector. */
const inView = (selector) => (note.querySelector(".doc:not([hidden])") ?? note).querySelectorAll(selector);

/** The position of a selection point in the note, in characters (not UTF-16 units); null outside of its text. */
function character(node, offset) {
  const within = node.nodeType === 3 ? node.parentElement.closest("[data-s]") : null;
  if (within) return Number(within.dataset.s) + [...node.data.slice(0, offset)].length;
  // A point between elements: the start of the next piece of text, or the end of the last one.
  const edge = document.createRange();
  edge.setStart(node, offset);
  const pieces = [...inView("[data-s]")];
  const next = pieces.find((piece) => edge.comparePoint(piece, 0) >= 0);
  if (next) return Number(next.dataset.s);
  const last = pieces.at(-1);
  return last ? Number(last.dataset.s) + [...last.textContent].length : null;
}
/** Remembers the selected characters of the note; a selection elsewhere does not clear them. The event of the browser
 * comes late, so callers that need the selection call this again. */
function remember() {
  const range = getSelection().rangeCount ? getSelection().getRangeAt(0) : null;
  if (!range || range.collapsed || !note.contains(range.startContainer) || !note.contains(range.endContainer)) {
    if (range && note.contains(range.startContainer)) marked = null;
    return;
  }
  const start = character(range.startContainer, range.startOffset), end = character(range.endContainer, range.endOffset);
  marked = start !== null && end !== null && start < end ? { start, end } : null;
}
document.addEventListener("selectionchange", remember);
/** The selected characters of the note, {start, end}, or null. */
export function selection() { remember(); return marked; }
function forget() {
  marked = null;
  getSelection().removeAllRanges();
}

/** Selection by keys: the arrows move the caret through the note, Shift extends the selection. */
let marking = false;
function mark(on) {
  marking = on;
  document.body.classList.toggle("marking", on);
  if (!on) return;
  note.focus();
  const start = inView("[data-k].at, [data-k].on")[0] ?? inView("[data-s]")[0];
  if (start) getSelection().collapse(start.firstChild, 0);
  say("Marking: arrows move by words, Shift with arrows selects, e makes it evidence, Escape ends.");
}
function markKey(event) {
  const way = { ArrowRight: ["forward", "word"], ArrowLeft: ["backward", "word"], ArrowDown: ["forward", "line"], ArrowUp: ["backward", "line"] }[event.key];
  if (!way) return false;
  getSelection().modify(event.shiftKey ? "extend" : "move", ...way);
  event.preventDefault();
  return true;
}

export const MORE_KEYS = {}; // key -> function, of other modules of the page
const KEYS = { a: "accept", r: "reject", c: "change", d: "book", u: "clear", p: "principal", "[": "up", "]": "down", e: "evidence" };
const WHERE = { a: ["open"], r: ["open", "chosen"], c: ["open", "chosen"], u: ["chosen", "rejected"], p: ["chosen"], "[": ["chosen"], "]": ["chosen"], e: ["chosen"] };

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && marking) return mark(false);
  if (event.target.id === "find") awaited = false;
  if (event.target.id === "find" && ["ArrowDown", "Enter"].includes(event.key)) {
    event.preventDefault();
    awaited = true;
    return enter();
  }
  if (event.target.id === "override" && event.key === "Enter") return panel().querySelector('[data-act="override"]').click();
  if (["find", "override"].includes(event.target.id) && event.key === "Escape") return select(now ?? cards()[0]?.dataset.key ?? null, { jump: false });
  if (event.target.matches?.(".hit") && ["ArrowDown", "ArrowUp"].includes(event.key)) {
    const hits = [...document.querySelectorAll("#hits .hit")];
    event.preventDefault();
    return (hits[hits.indexOf(event.target) + (event.key === "ArrowDown" ? 1 : -1)] ?? document.getElementById("find")).focus();
  }
  if (!isShortcut(event) || document.querySelector("dialog[open]")) return;
  if (marking && markKey(event)) return;
  if (!isEmpty() && !isStuck() && (KEYS[event.key] || MORE_KEYS[event.key] || "jknbhstfyzx".includes(event.key))) pressed.push(event.key);
  else if (!act(event.key)) return;
  event.preventDefault();
});

/** Moves the focus from the search field to the results, once they are those of the whole query. */
let awaited = false;
function enter() {
  const results = document.querySelector("#hits [data-query]");
  if (!awaited || results?.dataset.query !== document.getElementById("find")?.value) return;
  awaited = false;
  results.querySelector(".hit")?.focus();
}
document.body.addEventListener("htmx:afterSettle", enter);
export function awaitHits() { awaited = true; enter(); }

/** Runs the action of a key; returns whether it has one. */
function act(key) {
  if (key === "j" || key === "k") move(key === "j" ? 1 : -1);
  else if (key === "n" || key === "b") place(key === "n" ? 1 : -1);
  else if (key === "/") document.getElementById("find")?.focus();
  else if (key === "m") mark(!marking);
  else if (key === "h") ACTS[panel().dataset.status === "held" ? "resume" : "hold"]();
  else if (key === "s") ACTS.second();
  else if (key === "t") ACTS.take();
  else if (key === "f" && document.getElementById("override")) document.getElementById("override").focus();
  else if (key === "f") (panel().querySelector('[data-act="finish"], [data-act="approve"]'))?.click();
  else if (key === "y") panel().querySelector('[data-act="claim"]')?.click();
  else if (key === "z") ACTS.undo();
  else if (key === "x") unmarkShown();
  else if (MORE_KEYS[key]) MORE_KEYS[key]();
  else if (KEYS[key]) {
    const state = now && card(now)?.dataset.state;
    if (!state || (WHERE[key] && (closed() || !WHERE[key].includes(state)))) say("Not possible in the present state of this code.");
    else ACTS[KEYS[key]](now);
  } else return false;
  return true;
}

/** Removes the evidence of the selected code that is in view, or its first one. */
function unmarkShown() {
  const buttons = [...(now ? card(now)?.querySelectorAll('[data-act="unmark"]') ?? [] : [])];
  const at = note.querySelector("[data-k].at");
  const shown = buttons.find(({ dataset }) => at && Number(dataset.start) <= Number(at.dataset.s) && Number(at.dataset.s) < Number(dataset.end));
  if (!buttons.length) return say("This code has no evidence to remove.");
  ACTS.unmark(now, shown ?? buttons[0]);
}

// Order by dragging.
let dragged = null;
document.addEventListener("dragstart", (event) => {
  dragged = event.target.closest?.(".chosen .card") ?? null;
  if (dragged) { event.dataTransfer.effectAllowed = "move"; event.dataTransfer.setData("text/plain", dragged.dataset.key); dragged.classList.add("dragged"); }
});
document.addEventListener("dragover", (event) => {
  const over = event.target.closest?.(".chosen .card");
  document.querySelectorAll(".over").forEach((item) => item.classList.remove("over"));
  if (dragged && over) { event.preventDefault(); over.classList.add("over"); }
});
document.addEventListener("drop", (event) => {
  const over = event.target.closest?.(".chosen .card");
  if (dragged && over && over !== dragged) {
    event.preventDefault();
    const keys = [...panel().querySelectorAll(".chosen .card")].map((item) => item.dataset.key);
    order(dragged.dataset.key, keys.indexOf(over.dataset.key) - keys.indexOf(dragged.dataset.key));
  }
});
document.addEventListener("dragend", () => {
  document.querySelectorAll(".over, .dragged").forEach((item) => item.classList.remove("over", "dragged"));
  dragged = null;
});

// What was typed into the search survives a reload.
const find = document.getElementById("find"), typed = `find ${note.dataset.note}`;
if (find && sessionStorage.getItem(typed)) {
  find.value = sessionStorage.getItem(typed);
  addEventListener("load", () => document.getElementById("finding").requestSubmit()); // htmx takes the value for unchanged
}
document.addEventListener("input", (event) => { if (event.target.id === "find") sessionStorage.setItem(typed, event.target.value); });

const first = (closed() ? null : panel().querySelector(".open .card")) ?? cards()[0];
const scrolls = panel().scrollHeight > panel().clientHeight; // on a narrow screen it is below the text, with which the page opens
if (first) select(first.dataset.key, { focus: false, jump: false, scroll: scrolls });
document.body.addEventListener("htmx:afterSettle", () => { if (now === null && cards().length) select(cards()[0].dataset.key, { focus: false, jump: false }); });
