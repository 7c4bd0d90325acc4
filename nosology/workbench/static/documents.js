// Documents of the encounter in tabs, withdrawal of one, and the dialog with the data of the encounter.
import { say } from "./app.js";
import { ACTS, MORE_KEYS, decide, panel } from "./note.js";
import { isEmpty } from "./outbox.js";

const note = document.getElementById("note");
const tabs = () => [...document.querySelectorAll('.doc-tabs [role="tab"]')];
const shown = () => note.querySelector(".doc:not([hidden])");

/** Shows one document. */
function show(id, { focus = false } = {}) {
  for (const tab of tabs()) {
    const on = tab.dataset.document === id;
    tab.setAttribute("aria-selected", String(on));
    tab.tabIndex = on ? 0 : -1;
    if (on && focus) tab.focus();
    if (on) tab.scrollIntoView({ block: "nearest", inline: "nearest" });
  }
  for (const panel of note.querySelectorAll('[role="tabpanel"]')) panel.hidden = panel.dataset.document !== id;
  for (const nav of document.querySelectorAll(".sections[data-of]")) nav.hidden = nav.dataset.of !== id;
}

/** Shows the document so many places after the present one. */
function step(by, options) {
  const all = tabs();
  if (!all.length) return say("This encounter has one document.");
  const at = all.findIndex((tab) => tab.getAttribute("aria-selected") === "true");
  const next = all[(at + by + all.length) % all.length];
  show(next.dataset.document, options);
  note.scrollTop = 0;
  if (!options?.focus) say(next.querySelector("span").textContent);
}
MORE_KEYS["."] = () => step(1);
MORE_KEYS[","] = () => step(-1);

document.querySelector(".doc-tabs")?.addEventListener("click", ({ target }) => {
  const tab = target.closest('[role="tab"]');
  if (tab) { show(tab.dataset.document); note.scrollTop = 0; }
});
document.querySelector(".doc-tabs")?.addEventListener("keydown", (event) => {
  const way = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  const edge = { Home: 0, End: -1 }[event.key];
  if (way) step(way, { focus: true });
  else if (edge !== undefined) show(tabs().at(edge).dataset.document, { focus: true });
  else return;
  event.preventDefault();
});
// Evidence that note.js goes to may be in another document.
note.addEventListener("reveal", ({ target }) => {
  const owner = target.closest('[role="tabpanel"][hidden]');
  if (owner) show(owner.dataset.document);
});

// The text on the page must be the one of the panel: if an answer shows that documents came or went, the page is loaded
// again (while the encounter is being coded, the panel does that), and says what the panel said.
const CHANGED = "documents changed";
document.body.addEventListener("htmx:afterSettle", () => {
  if (panel().dataset.documents === [...note.querySelectorAll(".doc")].map(({ dataset }) => dataset.document).join(" ")) return;
  sessionStorage.setItem(CHANGED, document.getElementById("message")?.textContent.trim() ?? "");
  if (isEmpty() && !panel().hasAttribute("hx-get")) location.reload();
});
const before = sessionStorage.getItem(CHANGED);
sessionStorage.removeItem(CHANGED);
if (before !== null) say(`The documents of the encounter have changed. ${before}`.trim(), before && "error");

const withdrawal = document.getElementById("withdraw");
ACTS.withdrawDocument = () => shown() && withdrawal?.showModal();
document.getElementById("withdraw-now")?.addEventListener("click", () => {
  withdrawal.close();
  decide({ action: "withdraw", document: shown().dataset.document }, "document withdrawn");
});

const dialog = document.getElementById("encounter");
const form = document.getElementById("encounter-form");
const known = () => JSON.parse(document.getElementById("facts").dataset.encounter);
const fields = () => [...form.elements].filter(({ name }) => name);

function openFacts(values = known()) {
  for (const field of fields()) field.value = values[field.name] ?? "";
  lockAge();
  document.getElementById("encounter-closed").hidden = !["done", "preaccepted"].includes(panel().dataset.status);
  dialog.showModal();
  form.elements.sex.focus();
}
MORE_KEYS.i = ACTS.facts = () => openFacts();

/** The age follows from the birth date, if there is one. */
function lockAge() { form.elements.age.disabled = Boolean(form.elements.born.value); }
form.elements.born.addEventListener("input", lockAge);

form.addEventListener("submit", (event) => {
  event.preventDefault();
  const values = known(), changes = {};
  for (const { name, value, disabled } of fields())
    if (!disabled && value !== String(values[name] ?? "")) changes[name] = value === "" ? null : name === "age" ? Number(value) : value;
  const typed = Object.fromEntries(fields().map(({ name, value }) => [name, value]));
  dialog.close();
  if (!Object.keys(changes).length) return;
  decide({ action: "encounter", encounter: JSON.stringify(changes) }, "the data of the encounter are changed").then((saved) => saved || openFacts(typed));
});
