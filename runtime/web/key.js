// The API key: asked for when the server wants one, kept in this tab only.

const STORE = "edgeprec.key";
let key = load();

export function currentKey() {
  return key;
}

/** Show the dialog. Resolves with whether a key was given. `wasWrong` = the server has just refused one. */
export function askForKey(wasWrong) {
  const dialog = document.querySelector("#key-dialog");
  const field = document.querySelector("#key");
  document.querySelector("#key-note").textContent = wasWrong
    ? "The server did not take that key. Is it complete?"
    : "It stays in this tab and is forgotten when the tab is closed.";
  field.value = "";
  document.querySelector("#key-cancel").onclick = () => dialog.close("");
  return new Promise((resolve) => {
    dialog.onclose = () => {
      const isGiven = dialog.returnValue === "use" && field.value.trim() !== "";
      if (isGiven) store(field.value.trim());
      field.value = "";
      resolve(isGiven);
    };
    dialog.returnValue = "";
    dialog.showModal();
    field.focus();
  });
}

function load() {
  try {
    return sessionStorage.getItem(STORE) ?? "";
  } catch {
    return ""; // storage is switched off
  }
}

function store(value) {
  key = value;
  try {
    sessionStorage.setItem(STORE, value);
  } catch {
    // storage is switched off: the key lives until the reload
  }
}
