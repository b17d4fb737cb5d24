// The rollout browser. Whatever a model or a question file says reaches the page as text nodes alone.
// Columns of the index and the form of a row: rollouts.py, index_of and contents_of.
"use strict";
(() => {
  const at = (id) => document.getElementById(id);
  const index = JSON.parse(at("rollout-index").textContent);
  const files = [JSON.parse(at("rollout-page").textContent)]; // by number; 0 is the page itself
  const count = index.run.length;
  const bit = Object.fromEntries(index.states.map((state, place) => [state, 1 << place]));
  const filters = [
    ["all", "All", () => true],
    ["mixed", "Mixed", (bits) => bits & bit.mixed],
    ["uniform", "Uniform", (bits) => !(bits & bit.mixed)],
    ["timed_out", "Timed out", (bits) => bits & bit.timed_out],
    ["truncated", "Truncated", (bits) => bits & bit.truncated],
    ["no_answer", "No answer", (bits) => bits & bit.no_answer],
  ];
  const verdicts = {
    right: ["right", "✓ right"],
    wrong: ["wrong", "✗ wrong"],
    no_answer: ["odd", "– no answer"],
    timed_out: ["odd", "! timed out"],
    unusable_gold: ["odd", "? reference unusable"],
    error: ["odd", "! checker failed"],
  };
  const [PHRASING, REWARD, VERDICT, EXTRACTED, ADVANTAGE, TOKENS, TRUNCATED, COMPLETION, REWARDS] = Array(9).keys();
  let filter = filters[0];
  let query = "";
  let matches = [];
  let current = index.start; // number of a group
  const searched = new Array(count); // lower-case text of a group, as far as it is loaded
  let hits = new Array(count); // whether the search finds a group, once that was asked
  const waiting = new Map(); // file number -> what to do when it is there

  // Elements and texts.

  function element(tag, className, ...children) {
    const made = document.createElement(tag);
    if (className) made.className = className;
    made.append(...children);
    return made;
  }

  function appendText(parent, text) {
    const wanted = query;
    const lower = wanted ? text.toLowerCase() : "";
    let from = 0;
    // Lower case may have another length (İ); then nothing is marked, since places would not be the same.
    if (wanted && lower.length === text.length) {
      for (let place = lower.indexOf(wanted); place >= 0; place = lower.indexOf(wanted, from)) {
        parent.append(text.slice(from, place), element("mark", "", text.slice(place, place + wanted.length)));
        from = place + wanted.length;
      }
    }
    parent.append(text.slice(from));
  }

  const number = (value, digits = 3) =>
    typeof value === "number" ? String(Number(value.toFixed(digits))).replace("-", "−") : String(value ?? "none");
  const signed = (value) => (typeof value === "number" && value > 0 ? "+" : "") + number(value, 2);
  const many = (value) => value.toLocaleString("en");

  // Maths: what stands between $…$, $$…$$, \(…\), \[…\], and \boxed{…}. What Temml refuses stays as it is.

  const opening = /\$\$|\\\[|\\\(|\$(?=\S)|\\boxed\s*\{/g;
  const closing = { "$$": "$$", "\\[": "\\]", "\\(": "\\)" };
  const longest = 3000;

  function pieces(text) {
    const found = [];
    let from = 0;
    opening.lastIndex = 0;
    for (let start = opening.exec(text); start; start = opening.exec(text)) {
      const sign = start[0];
      const inner = start.index + sign.length;
      const end = sign === "$" ? dollar(text, inner) : closing[sign] ? text.indexOf(closing[sign], inner) : brace(text, inner);
      if (end < 0 || end - inner > longest || end === inner) continue;
      const boxed = sign.startsWith("\\boxed");
      const after = end + (boxed || sign === "$" ? 1 : 2);
      if (start.index > from) found.push([text.slice(from, start.index), null, false]);
      const tex = boxed ? text.slice(start.index, after) : text.slice(inner, end);
      found.push([text.slice(start.index, after), tex, sign === "$$" || sign === "\\["]);
      from = opening.lastIndex = after;
    }
    if (from < text.length) found.push([text.slice(from), null, false]);
    return found;
  }

  // A closing dollar has no space before it and no digit after it, so that "$5 and $6" is money.
  function dollar(text, from) {
    for (let place = text.indexOf("$", from); place >= 0; place = text.indexOf("$", place + 1)) {
      if (text[place - 1] === "\\") continue;
      if (/\n\s*\n/.test(text.slice(from, place))) return -1;
      return /\s/.test(text[place - 1]) || /\d/.test(text[place + 1] ?? "") ? -1 : place;
    }
    return -1;
  }

  function brace(text, from) {
    let depth = 1;
    for (let place = from; place < text.length && place - from <= longest; place++) {
      if (text[place] === "\\") place++;
      else if (text[place] === "{") depth++;
      else if (text[place] === "}" && --depth === 0) return place;
    }
    return -1;
  }

  // The responses to a question repeat each other's formulas: each is typeset once.
  const typesetBefore = new Map();

  function typeset(tex, display) {
    const key = `${display} ${tex}`;
    if (typesetBefore.size > 5000) typesetBefore.clear();
    if (!typesetBefore.has(key)) typesetBefore.set(key, typesetAnew(tex, display));
    return typesetBefore.get(key)?.cloneNode(true);
  }

  function typesetAnew(tex, displayMode) {
    const place = document.createElement("span");
    try {
      temml.render(tex, place, { displayMode, throwOnError: true, trust: false, maxExpand: 100, maxSize: [10, 20] });
    } catch {
      return null;
    }
    for (const part of place.querySelectorAll("*")) {
      if (part.namespaceURI !== "http://www.w3.org/1998/Math/MathML") return null;
      for (const name of ["id", "href", "xlink:href", "src"]) part.removeAttribute(name);
    }
    return place;
  }

  // A text is there at once; its maths is typeset a moment later, a few texts at a time and those in sight first.
  let queue = [];
  let settling = 0;

  function body(text, row) {
    const made = element("div", "text-body");
    appendText(made, text);
    if (at("maths").checked) queue.push([row, made, text]);
    return made;
  }

  function settle(texts) {
    for (const [, made, text] of queue.splice(0, texts)) {
      const found = pieces(text).map(([raw, tex, display]) => [raw, tex === null ? null : typeset(tex, display)]);
      if (!found.some(([, maths]) => maths)) continue;
      made.replaceChildren();
      for (const [raw, maths] of found) {
        if (maths) made.append(maths);
        else appendText(made, raw);
      }
    }
    clearTimeout(settling);
    if (queue.length) settling = setTimeout(settle, 0, 8);
    else settling = setTimeout(() => document.querySelector(".quick")?.classList.remove("quick"), 200);
  }

  // One group.

  function response(row, functions, place) {
    const [kind, told] = verdicts[row[VERDICT]] ?? ["", row[VERDICT] ?? ""];
    const facts = element("p", "facts");
    if (told) facts.append(element("span", `badge ${kind}`, told));
    facts.append(element("span", "", `reward ${number(row[REWARD])}`));
    const sign = row[ADVANTAGE] > 0 ? "plus" : row[ADVANTAGE] < 0 ? "minus" : "";
    facts.append(element("span", sign, `advantage ${signed(row[ADVANTAGE])}`));
    const text = row[COMPLETION];
    const characters = `${many(text.length)} characters`;
    facts.append(element("span", "", row[TOKENS] === null ? characters : `${many(row[TOKENS])} tokens, ${characters}`));
    if (row[TRUNCATED]) facts.append(element("span", "badge odd", "… truncated"));
    (row[REWARDS] ?? []).forEach((value, place) => facts.append(element("span", "", `${functions[place]} ${number(value)}`)));
    const card = element("article", `response ${kind}${text.length > 1500 ? " long" : ""}`, facts, body(text, place));
    if (row[EXTRACTED] !== null) {
      const answer = element("p", "answer", "extracted answer ");
      const shown = element("span", "");
      appendText(shown, row[EXTRACTED]);
      answer.append(shown);
      card.append(answer);
    }
    return card;
  }

  function column(phrasing, prompt, rows, functions) {
    const right = rows.filter((row) => row[REWARD] > 0).length;
    const title = element("h3", "", phrasing === 0 ? "q₀, the original " : `q${subscript(phrasing)}, rephrasing `);
    title.append(element("span", "count", `${right} of ${rows.length} rewarded`));
    const head = element("div", `prompt${prompt.length > 1500 ? " long" : ""}`, title, body(prompt, 0));
    return element("section", "phrasing", head, ...rows.map((row, place) => response(row, functions, place)));
  }

  const subscript = (value) => String(value).replace(/\d/g, (digit) => String.fromCharCode(0x2080 + Number(digit)));

  function describe(group) {
    const bits = index.bits[group];
    const told = bits & bit.mixed ? "mixed" : bits & bit.all_right ? "uniform: all right" : bits & bit.all_wrong ? "uniform: all wrong" : "uniform: no rewards";
    const line = element("p", "summary");
    const id = element("strong", "");
    appendText(id, index.id[group]);
    line.append(id, element("span", "badge", told));
    line.append(element("span", "", `${index.right[group]} of ${index.size[group]} rewarded`));
    line.append(element("span", "", `${index.runs[index.run[group]]}, step ${index.step[group]}`));
    return line;
  }

  function show(group, fromUser) {
    current = group;
    fillSelects();
    const file = index.file[group];
    const place = at("group");
    queue = [];
    if (!files[file]) {
      place.replaceChildren(describe(group), element("p", "note", `Loading ${index.files[file - 1]} …`));
      load(file, () => current === group && show(group, false));
    } else {
      const { groups, texts } = files[file];
      const [prompts, rows, functions = []] = groups[index.place[group]];
      const columns = prompts.map(([phrasing, text]) =>
        column(phrasing, texts[text], rows.filter((row) => row[PHRASING] === phrasing), functions),
      );
      const phrasings = element("div", "phrasings quick", ...columns);
      phrasings.tabIndex = 0;
      place.replaceChildren(describe(group), phrasings);
      queue.sort(([a], [b]) => a - b);
      settle(8);
    }
    at("link").href = linkTo(group);
    if (fromUser) history.replaceState(null, "", linkTo(group));
  }

  function showNone() {
    at("group").replaceChildren(element("p", "note", "No group matches. Another filter or search shows more."));
    for (const name of ["run", "step", "question"]) at(name).replaceChildren();
  }

  // Further rollouts, from script files beside the page: a page opened from disk can load those, and nothing else.

  function load(file, then) {
    if (waiting.has(file)) return waiting.get(file).push(then);
    waiting.set(file, [then]);
    const script = document.createElement("script");
    script.src = index.files[file - 1];
    script.onerror = () => {
      waiting.delete(file);
      const told = `${index.files[file - 1]} is not beside this page; keep the folder with it, or write the report again.`;
      at("group").replaceChildren(describe(current), element("p", "absent", told));
    };
    document.head.append(script);
  }

  window.taGrpoRollouts = (file, content) => {
    files[file] = content;
    for (let group = 0; group < count; group++) if (index.file[group] === file) searched[group] = hits[group] = undefined;
    const ready = waiting.get(file) ?? [];
    waiting.delete(file);
    ready.forEach((then) => then());
  };

  function loadAll() {
    const next = index.files.findIndex((_, place) => !files[place + 1]);
    if (next < 0) return refresh(false);
    at("position").textContent = `loading file ${next + 1} of ${index.files.length} …`;
    load(next + 1, loadAll);
  }

  // Choosing: filter and search make the matches, in which the selects and the keys move.

  function textOf(group) {
    if (searched[group] === undefined) {
      const parts = [index.id[group], index.texts[index.question[group]]];
      const file = files[index.file[group]];
      if (file) {
        const [prompts, rows] = file.groups[index.place[group]];
        for (const [, text] of prompts) parts.push(file.texts[text]);
        for (const row of rows) parts.push(row[COMPLETION], row[EXTRACTED] ?? "");
      }
      searched[group] = parts.join("\n").toLowerCase();
    }
    return searched[group];
  }

  const isHit = (group) => !query || (hits[group] ??= textOf(group).includes(query));

  function refresh(fromUser) {
    matches = [];
    for (let group = 0; group < count; group++) {
      if (filter[2](index.bits[group]) && isHit(group)) matches.push(group);
    }
    for (const button of at("filters").children) button.setAttribute("aria-pressed", button.value === filter[0]);
    const unloaded = index.files.filter((_, place) => !files[place + 1]).length;
    at("load").hidden = !query || !unloaded;
    at("load").textContent = `Search the other ${unloaded} file${unloaded === 1 ? "" : "s"} too`;
    if (!matches.length) showNone();
    else show(matches.includes(current) ? current : (matches.find((group) => group > current) ?? matches[0]), fromUser);
    tellPosition();
  }

  function tellPosition() {
    const place = matches.indexOf(current);
    at("position").textContent = matches.length ? `Group ${many(place + 1)} of ${many(matches.length)}` : "No group";
    at("previous").disabled = place <= 0;
    at("next").disabled = place < 0 || place === matches.length - 1;
  }

  function move(by) {
    const place = matches.indexOf(current) + by;
    if (place < 0 || place >= matches.length) return;
    show(matches[place], true);
    tellPosition();
  }

  function options(select, entries, chosen) {
    select.replaceChildren(
      ...entries.map(([value, label]) => {
        const made = element("option", "", label);
        made.value = value;
        return made;
      }),
    );
    select.value = String(chosen);
  }

  function fillSelects() {
    const run = index.run[current];
    const step = index.step[current];
    const ofRun = matches.filter((group) => index.run[group] === run);
    const ofStep = ofRun.filter((group) => index.step[group] === step);
    const runs = [...new Set(matches.map((group) => index.run[group]))];
    const steps = [...new Set(ofRun.map((group) => index.step[group]))];
    options(at("run"), runs.map((each) => [each, index.runs[each]]), run);
    options(at("step"), steps.map((each) => [each, each]), step);
    options(at("question"), ofStep.map((group) => [group, label(group)]), current);
  }

  function label(group) {
    const text = index.texts[index.question[group]].replace(/\s+/g, " ");
    const short = text.length > 60 ? `${text.slice(0, 59)}…` : text;
    return `${index.right[group]}/${index.size[group]}  ${index.id[group]}: ${short}`;
  }

  function choose(test) {
    const found = matches.find(test);
    if (found === undefined) return;
    show(found, true);
    tellPosition();
  }

  // Links: #rollouts/RUN/STEP/NUMBER/QUESTION.

  function linkTo(group) {
    const parts = [index.runs[index.run[group]], index.step[group], index.number[group], index.id[group]];
    return `#rollouts/${parts.map(encodeURIComponent).join("/")}`;
  }

  function followHash() {
    if (!location.hash.startsWith("#rollouts/")) return;
    let group = -1;
    for (let each = 0; each < count && group < 0; each++) if (linkTo(each) === location.hash) group = each;
    at("rollouts").scrollIntoView();
    if (group < 0) {
      at("group").replaceChildren(element("p", "absent", "The group of this link is not among those that this page has."));
      return;
    }
    filter = filters[0];
    query = at("search").value = "";
    hits = new Array(count);
    current = group;
    refresh(false);
  }

  // Controls.

  for (const [name, title, holds] of filters) {
    const there = index.bits.reduce((sum, bits) => sum + (holds(bits) ? 1 : 0), 0);
    const button = element("button", "", `${title} ${many(there)}`);
    button.type = "button";
    button.value = name;
    button.disabled = !there;
    if (name === "truncated" && !there) {
      const told = files[0].groups.some(([, rows]) => rows.some((row) => row[TRUNCATED] !== null));
      button.title = told ? "No response was cut at the longest length" : "These runs did not record which responses were cut";
    }
    button.addEventListener("click", () => {
      filter = filters.find(([each]) => each === name);
      refresh(true);
    });
    at("filters").append(button);
  }
  let pause = 0;
  at("search").addEventListener("input", () => {
    clearTimeout(pause);
    pause = setTimeout(() => {
      query = at("search").value.trim().toLowerCase();
      hits = new Array(count);
      refresh(false);
    }, 120);
  });
  at("previous").addEventListener("click", () => move(-1));
  at("next").addEventListener("click", () => move(1));
  at("load").addEventListener("click", loadAll);
  at("maths").addEventListener("change", () => matches.length && show(current, false));
  at("run").addEventListener("change", () => choose((group) => index.run[group] === Number(at("run").value)));
  at("step").addEventListener("change", () =>
    choose((group) => index.run[group] === index.run[current] && index.step[group] === Number(at("step").value)),
  );
  at("question").addEventListener("change", () => choose((group) => group === Number(at("question").value)));
  addEventListener("hashchange", followHash);
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Escape" && event.target === at("search")) return at("search").blur();
    if (/^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName) && event.target.type !== "checkbox") return;
    const sideways = event.target.closest?.(".phrasings, .scroll"); // arrows scroll those
    if (event.key === "j" || (event.key === "ArrowRight" && !sideways)) move(1);
    else if (event.key === "k" || (event.key === "ArrowLeft" && !sideways)) move(-1);
    else if (event.key === "m") at("maths").click();
    else if (event.key === "/") at("search").focus();
    else return;
    event.preventDefault();
  });

  at("run-field").hidden = index.runs.length < 2;
  at("browser").hidden = false;
  refresh(false);
  followHash();
})();
