// The page of adjudication: choices by keys, evidence in the note, a draft that survives a reload.
import { isShortcut } from "./app.js";

const form = document.getElementById("adjudicate");
const text = document.getElementById("text");
const differences = [...form.querySelectorAll(".difference")];
const radios = (item) => [...item.querySelectorAll("input[type=radio]")];
const isDecided = (item) => radios(item).some((radio) => radio.checked);
let at = -1; // index of the difference in focus

/** Marks a difference as the present one, and highlights the evidence of its code in the note. */
function show(index) {
  at = index;
  differences.forEach((item, number) => item.classList.toggle("now", number === at));
  const key = differences[at]?.dataset.key;
  for (const piece of text.querySelectorAll("[data-k]")) piece.classList.toggle("on", piece.dataset.k.split(" ").includes(key));
  reveal(text.querySelector("[data-k].on"));
}

function move(index) {
  const item = differences[Math.min(differences.length - 1, Math.max(0, index))];
  if (!item) return;
  (radios(item).find((radio) => radio.checked) ?? radios(item)[0]).focus();
  item.scrollIntoView({ block: "nearest" });
}

function reveal(piece) {
  text.querySelectorAll(".at").forEach((item) => item.classList.remove("at"));
  if (!piece) return;
  piece.classList.add("at");
  const { top, height } = piece.getBoundingClientRect();
  text.scrollTop += top + height / 2 - text.getBoundingClientRect().top - text.clientHeight / 2;
}

function count() {
  const number = differences.filter(isDecided).length;
  document.getElementById("decided").textContent = `${number} of ${differences.length} decided`;
}

function keep() {
  const chosen = differences.flatMap(radios).filter((radio) => radio.checked).map((radio) => [radio.name, radio.value]);
  sessionStorage.setItem(form.dataset.draft, JSON.stringify(Object.fromEntries(chosen)));
  count();
}

const draft = JSON.parse(sessionStorage.getItem(form.dataset.draft) ?? "{}");
for (const radio of differences.flatMap(radios)) if (draft[radio.name] === radio.value) radio.checked = true;
count();

form.addEventListener("change", keep);
form.addEventListener("focusin", (event) => {
  const index = differences.indexOf(event.target.closest(".difference"));
  if (index >= 0 && index !== at) show(index);
});
form.addEventListener("click", (event) => {
  const quote = event.target.closest(".quote");
  if (quote) reveal([...text.querySelectorAll("[data-s]")].findLast((piece) => Number(piece.dataset.s) <= Number(quote.dataset.start)));
});
document.addEventListener("keydown", (event) => {
  if (!isShortcut(event) || document.querySelector("dialog[open]")) return;
  if (event.key === "j" || event.key === "k") move(at + (event.key === "j" ? 1 : -1));
  else if ("12".includes(event.key) && differences[at]) {
    radios(differences[at])[Number(event.key) - 1].checked = true;
    keep();
    move(at + 1);
  } else if (event.key === "f") form.requestSubmit();
  else return;
  event.preventDefault();
});

move(Math.max(0, differences.findIndex((item) => !isDecided(item))));
