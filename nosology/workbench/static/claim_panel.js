// Steps on the note page: accept all codes above a threshold, present on admission. Folded parts of the panel stay as
// they are when a decision replaces the panel.
import { say } from "./app.js";
import { ACTS, MORE_KEYS, decide, panel } from "./note.js";

const FROM = "accept-from", DEFAULT = 80; // percent; remembered by the browser
const folds = new Map(); // name -> open; the browser remembers those of KEPT
const KEPT = ["groups", "claim"];

function threshold() {
  const percent = Math.round(Number(localStorage.getItem(FROM)));
  return percent >= 1 && percent <= 100 ? percent : DEFAULT;
}

const above = (button) => button.dataset.chances.split(" ").filter((chance) => Number(chance) >= threshold()).length;

/** Shows the threshold of this browser and how many codes are above it; opens what was open. */
function refresh() {
  const field = document.getElementById("accept-from");
  if (field && field !== document.activeElement) field.value = threshold();
  const button = panel().querySelector('[data-act="acceptAll"]');
  if (button) button.querySelector("[data-number]").textContent = above(button);
  for (const fold of panel().querySelectorAll("[data-fold]")) if (folds.has(fold.dataset.fold)) fold.open = folds.get(fold.dataset.fold);
}

document.addEventListener("input", ({ target }) => {
  if (target.id !== "accept-from" || !target.checkValidity() || !target.value) return;
  localStorage.setItem(FROM, target.value);
  refresh();
});
document.addEventListener("keydown", (event) => {
  if (event.target.id !== "accept-from" || !["Enter", "Escape"].includes(event.key)) return;
  event.preventDefault();
  panel().querySelector(".card.now")?.focus();
  refresh();
});
document.addEventListener("toggle", ({ target }) => {
  if (!target.dataset?.fold || !target.isConnected) return;
  folds.set(target.dataset.fold, target.open);
  if (KEPT.includes(target.dataset.fold)) localStorage.setItem(target.dataset.fold, target.open ? "open" : "folded");
}, true);

ACTS.acceptAll = () => {
  const button = panel().querySelector('[data-act="acceptAll"]'), count = button ? above(button) : 0;
  if (!count) return say(`No open code has a probability of ${threshold()} % or more.`);
  const isBelow = button.dataset.principal && Number(button.dataset.chances.split(" ")[0]) < threshold();
  const principal = isBelow ? `. The proposed principal diagnosis ${button.dataset.principal} is not among them` : "";
  return decide({ action: "accept_all", percent: threshold() }, `${count} code${count === 1 ? "" : "s"} accepted: ${threshold()} % or more${principal}`);
};
ACTS.poaAll = () => {
  if (!panel().querySelector('[data-act="poaAll"]')) return say("Every diagnosis has an indicator or is exempt.");
  return decide({ action: "poa_all" }, "present on admission: yes where nothing was set");
};
MORE_KEYS.A = ACTS.acceptAll;
MORE_KEYS.O = ACTS.poaAll;

const chips = (card) => [...(card?.querySelectorAll('[role="radio"]') ?? [])];
const isOn = (chip) => chip.getAttribute("aria-checked") === "true";

/** Sets present on admission of a card; the focus returns to the group if it was there. */
function setPoa(card, value) {
  const { key } = card.dataset, inside = document.activeElement?.getAttribute("role") === "radio";
  const words = value ? `present on admission of ${key.split(":")[1]}: ${value}` : `present on admission of ${key.split(":")[1]}: not set`;
  return decide({ action: "poa", code: key, poa: value }, words).then(() => {
    if (inside) panel().querySelector(`.card[data-key="${CSS.escape(key)}"] [data-stop]`)?.focus();
  });
}
ACTS.poa = (_, chip) => setPoa(chip.closest(".card"), isOn(chip) ? "" : chip.value);
MORE_KEYS.o = () => {
  const card = panel().querySelector(".card.now"), all = chips(card), at = all.findIndex(isOn);
  if (all.length) return setPoa(card, all[at + 1]?.value ?? "");
  say(card?.querySelector("[data-exempt]") ? "The code is exempt from present on admission." : "Choose a diagnosis of a stay first.");
};
document.addEventListener("keydown", (event) => {
  const chip = event.target.closest?.('[role="radio"]'), step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
  if (!chip || !step) return;
  event.preventDefault();
  const all = chips(chip.closest(".card")), at = all.indexOf(chip);
  setPoa(chip.closest(".card"), all[(at + step + all.length) % all.length].value);
});

for (const fold of KEPT) if (localStorage.getItem(fold) === "open") folds.set(fold, true);
refresh();
document.body.addEventListener("htmx:afterSettle", refresh);
