// Owns: what the views of lists share: filters that are kept in the address, pages, and how an answer becomes content.
let typing = 0, tookMs = 0;   // how long the newest answers took: what is slow is asked for less often

// Fill the view with what `make` returns, unless another view was asked for meanwhile.
async function shown(main, context, make) {
  if (context.anew && main.dataset.drawn !== main.dataset.view) fill(main, note("Asking…"));
  try {
    const began = performance.now();
    const content = await make(context.signal);
    tookMs = performance.now() - began;
    if (context.signal.aborted) return;
    main.dataset.drawn = main.dataset.view;
    fill(main, content);
  } catch (fault) {
    if (!context.signal.aborted) failed(main, fault);
  }
}

// A filter that is being typed counts when the reader stops for a moment; a new filter begins at the first page.
const AT_FIRST = { after: undefined, first: undefined };
const filter = (name, label, value, more = {}) => h("label", {}, `${label} `, h("input", {
  type: "search", value: value || "", "data-focus": `filter ${name}`, autocomplete: "off", spellcheck: "false", ...more,
  oninput: (event) => { clearTimeout(typing); typing = setTimeout(() => alter({ [name]: event.target.value.trim(), ...AT_FIRST }, { trail: false }), 250); },
}));
const choice = (name, label, value, options) => h("label", {}, `${label} `, h("select", {
  "data-focus": `filter ${name}`, onchange: (event) => alter({ [name]: event.target.value, ...AT_FIRST }),
}, Object.entries(options).map(([id, text]) => h("option", { value: id, selected: id === (value || "") }, text))));
const pressed = (name, label, params) => h("button", {
  type: "button", "data-focus": `filter ${name}`, "aria-pressed": String(!!params[name]), onclick: () => alter({ [name]: params[name] ? undefined : "1" }),
}, label);

const pager = (first, next) => first || next ? h("nav", { class: "row", "aria-label": "Pages" },
  h("button", { type: "button", "data-focus": "page first", disabled: !first, onclick: () => alter(first) }, "First page"),
  h("button", { type: "button", "data-focus": "page next", disabled: !next, onclick: () => { alter(next); window.scrollTo(0, 0); } }, "Next page")) : null;
