// Owns: what is shown, as the part of the address behind `#`, which no server and no log ever gets: `#/tables?prefix=a`.
function where() {
  const [path, text] = location.hash.replace(/^#\/?/, "").split("?");
  const [view, ...names] = path.split("/").map((part) => { try { return decodeURIComponent(part); } catch { return part; } });
  return { view: view || "cluster", names, params: Object.fromEntries(new URLSearchParams(text || "")) };
}

const link = (names, params = {}) => query(`#/${names.map(encodeURIComponent).join("/")}`, params);
const go = (names, params) => { location.hash = link(names, params); };

// Change some parameters of what is shown; a filter that is being typed leaves no trail of addresses.
function alter(changes, { trail = true } = {}) {
  const { view, names, params } = where();
  const address = link([view, ...names], { ...params, ...changes });
  if (trail) location.hash = address;
  else { history.replaceState(null, "", address); window.dispatchEvent(new HashChangeEvent("hashchange")); }
}
