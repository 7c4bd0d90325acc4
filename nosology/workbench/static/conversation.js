// The conversation on the page of a note: queries to physicians, comments, sending back.
import { say } from "./app.js";
import { dropDraft, keepDraft, readDraft, restoreDraft, send, writeDraft } from "./drafts.js";
import { ACTS, decide, MORE_KEYS, name, panel, select, selection, showInNote } from "./note.js";
import { flush, isEmpty } from "./outbox.js";

const dialog = (id) => document.getElementById(id);
const formOf = (id) => dialog(id).querySelector("form.stack");
const ask = formOf("ask"), comment = formOf("comment"), answer = formOf("answer"), back = formOf("return");
for (const form of [ask, comment, answer, back]) keepDraft(form);
for (const form of [ask, comment, back]) restoreDraft(form);

/** The text of the note between two positions, in characters. */
function passage(start, end) {
  let words = "";
  for (const piece of document.querySelectorAll("#note [data-s]")) {
    const at = Number(piece.dataset.s), text = [...piece.textContent];
    if (at < end && at + text.length > start) words += text.slice(Math.max(0, start - at), end - at).join("");
  }
  return words;
}

function showPassage() {
  const { start, end } = ask.elements, known = start.value !== "";
  ask.querySelector(".passage").hidden = !known;
  ask.querySelector(".no-passage").hidden = known;
  ask.querySelector(".passage q").textContent = known ? passage(Number(start.value), Number(end.value)) : "";
}

function setPassage(span) {
  ask.elements.start.value = span?.start ?? "";
  ask.elements.end.value = span?.end ?? "";
  showPassage();
}
ask.querySelector("[data-drop]").addEventListener("click", () => { setPassage(null); writeDraft(ask); ask.elements.question.focus(); });

/** Fills the list of codes of a form with those on the panel; keeps the one that is chosen. */
function listCodes(form, chosen) {
  const list = form.elements.code;
  const cards = [...panel().querySelectorAll(".card")].map((card) => [card.dataset.key, `${name(card.dataset.key)} ${card.querySelector(".words")?.textContent ?? ""}`]);
  list.replaceChildren(new Option("none", ""), ...cards.map(([key, words]) => new Option(words, key)));
  list.value = cards.some(([key]) => key === chosen) ? chosen : "";
}
const selected = () => panel().querySelector(".card.now")?.dataset.key ?? "";

/** Puts a question of the proposed claim into the form. */
function takeOver({ dataset }) {
  ask.elements.question.value = dataset.question;
  ask.elements.code.value = "";
  setPassage(dataset.start ? dataset : null);
  writeDraft(ask);
  ask.elements.options.focus();
}

function listProposed() {
  const proposed = [...panel().querySelectorAll('[data-act="ask"][data-question]')].slice(0, 9);
  dialog("ask-proposed").replaceChildren(...proposed.map((from, index) => {
    const item = document.createElement("li"), button = document.createElement("button"), key = document.createElement("kbd");
    key.textContent = index + 1;
    button.type = "button";
    button.append(key, ` ${from.dataset.question}`);
    button.addEventListener("click", () => takeOver(from));
    item.append(button);
    return item;
  }));
  dialog("ask-proposed").hidden = !proposed.length;
  return proposed;
}
dialog("ask").addEventListener("keydown", (event) => {
  if (event.target.closest("input, textarea, select") || !/^[1-9]$/.test(event.key)) return;
  dialog("ask-proposed").querySelectorAll("button")[event.key - 1]?.click();
  event.preventDefault();
});

function openQuery(from) {
  const draft = readDraft(ask), span = selection();
  listCodes(ask, draft?.code ?? (span ? "" : selected())); // what is selected comes before the code in view
  const proposed = listProposed();
  if (!draft || span) setPassage(span);
  else showPassage();
  dialog("ask").showModal();
  if (from?.dataset.question) takeOver(from);
  else if (span || draft?.question || !proposed.length) ask.elements.question.focus();
  else dialog("ask-proposed").querySelector("button").focus();
}

function openComment() {
  listCodes(comment, readDraft(comment)?.code ?? "");
  dialog("comment").showModal();
  comment.elements.text.focus();
}

function openAnswer(item) {
  answer.reset();
  answer.dataset.path = `/notes/${panel().dataset.note}/queries/${item.dataset.query}/answer`;
  answer.dataset.draft = `answer ${item.dataset.query}`;
  answer.querySelector(".question").textContent = item.querySelector(".typed").textContent;
  answer.querySelector(".choices-of").replaceChildren(...JSON.parse(item.dataset.choices).map((choice) => {
    const label = document.createElement("label"), box = document.createElement("input");
    Object.assign(box, { type: "radio", name: "choice", value: choice, required: true });
    label.className = "switch";
    label.append(box, ` ${choice}`);
    return label;
  }));
  answer.elements.physician.value = item.dataset.physician;
  restoreDraft(answer);
  dialog("answer").showModal();
  answer.querySelector('[name="choice"]').focus();
}

/** Sends a form after the decisions that wait, and shows the panel of the answer; returns whether it was saved. */
async function submit(form, words) {
  await flush();
  if (!isEmpty()) return say("Your decisions are not saved yet. Your text is still here; send it when they are.", "error");
  form.dataset.key ||= crypto.randomUUID(); // of this text: one that is sent again is stored once
  const html = await send(form, { key: form.dataset.key });
  if (html === null) return false;
  delete form.dataset.key;
  const now = selected();
  htmx.swap(panel(), html, { swapStyle: "outerHTML", swapDelay: 0, settleDelay: 0 });
  form.closest("dialog")?.close();
  if (now) select(now, { jump: false });
  dropDraft(form);
  say(words);
  return true;
}

ask.addEventListener("submit", (event) => { event.preventDefault(); submit(ask, "The query is sent.").then((saved) => saved && showPassage()); });
comment.addEventListener("submit", (event) => { event.preventDefault(); submit(comment, "The comment is saved."); });
answer.addEventListener("submit", (event) => { event.preventDefault(); submit(answer, "The answer is recorded."); });
back.addEventListener("submit", async (event) => {
  event.preventDefault();
  const { note } = panel().dataset;
  dialog("return").close();
  await decide({ action: "return", explanation: back.elements.explanation.value }, "The note is sent back to its coder.");
  if (panel().dataset.note === note && panel().dataset.status === "open") dropDraft(back); // else it is still typed
});

Object.assign(ACTS, {
  ask: (_, from) => openQuery(from),
  comment: openComment,
  answer: (_, from) => openAnswer(from.closest("[data-query]")),
  return: () => { dialog("return").showModal(); back.elements.explanation.focus(); },
  passage: (_, from) => {
    const pieces = [...document.querySelectorAll("#note [data-s]")];
    const piece = pieces.findLast((item) => Number(item.dataset.s) <= Number(from.dataset.start));
    if (piece) showInNote(piece);
    say(`Passage: ${passage(Number(from.dataset.start), Number(from.dataset.end))}`);
  },
  withdraw: (_, from) => {
    const form = document.createElement("form");
    form.dataset.path = `/notes/${panel().dataset.note}/queries/${from.closest("[data-query]").dataset.query}/withdraw`;
    form.dataset.draft = "withdraw";
    submit(form, "The query is withdrawn.");
  },
});
Object.assign(MORE_KEYS, {
  w: () => openQuery(null),
  l: openComment,
  v: () => (panel().querySelector('[data-act="return"]') ? ACTS.return() : say("Reviewers send second reviews back, nothing else.")),
});
