// What every page shares: the CSRF token on htmx requests, the help sheet, keys that are not held by a field.

const token = document.querySelector('meta[name="csrf"]')?.content;
document.body.addEventListener("htmx:configRequest", (event) => {
  if (token) event.detail.headers["X-CSRF-Token"] = token;
});
document.body.addEventListener("htmx:responseError", (event) => {
  say(event.detail.xhr.status === 401 ? "You are signed out." : "That did not work. Load the page again.");
  if (event.detail.xhr.status === 401) location.assign("/login");
});
document.body.addEventListener("htmx:sendError", () => say("The server does not answer. Nothing was lost; try again."));

/** Says something to people who do not see it happen. */
export function say(words) {
  document.getElementById("say").textContent = words;
}

const help = document.getElementById("help");
const switchBox = document.getElementById("keys-on");
let keysOn = localStorage.getItem("keys") !== "off";
switchBox.checked = keysOn;
switchBox.addEventListener("change", () => {
  keysOn = switchBox.checked;
  localStorage.setItem("keys", keysOn ? "on" : "off");
});
document.getElementById("help-button").addEventListener("click", () => help.showModal());

/** Whether a key is somebody's typing, or a shortcut of the browser, and not ours. */
export function isOurs(event) {
  if (!keysOn || event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return false;
  return !event.target.closest("input:not([type=checkbox]), textarea, select");
}

/** Where the next note is: after this one, in the order that was chosen in the queue. */
function next() {
  const note = document.getElementById("note");
  return note ? `/next?after=${note.dataset.note}&order=${note.dataset.order}` : document.getElementById("next")?.href ?? "/next";
}

document.addEventListener("keydown", (event) => {
  if (!isOurs(event) || document.querySelector("dialog[open]")) return;
  if (event.key === "?") help.showModal();
  else if (event.key === "q") location.assign("/");
  else if (event.key === "g") location.assign(next());
  else return;
  event.preventDefault();
});
