// What the pages of all reports share. Text reaches a page as text nodes only,
// never as markup. `report` is the report's JSON.
'use strict';

const integer = (value) => Math.round(value).toLocaleString('en-US');
const ranks = (count) => count + (count === 1 ? ' rank' : ' ranks');

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function tableElement(head, rows) {
  return element('div', {class: 'scroll'}, element('table', {},
      element('thead', {}, element('tr', {}, ...head.map((text) => element('th', {scope: 'col'}, text)))),
      element('tbody', {}, ...rows)));
}

const coresText = () => report.machine.cpu + ', ' + report.machine.cores + (report.machine.cores === 1 ? ' core' : ' cores');

// Rows of the table #facts: the machine, the given pairs, and where the report is from.
function fillFacts(pairs) {
  const {machine} = report;
  const facts = [
    ['Machine', coresText() + ', ' + (machine.memory_bytes / 2 ** 30).toFixed(0) + ' GiB, ' + machine.system],
    ...pairs,
    ['Date', report.created],
    ['Commit', report.commit || 'unknown'],
  ];
  const rows = facts.map(([name, value]) => element('tr', {}, element('th', {scope: 'row'}, name), element('td', {}, value)));
  rows.push(element('tr', {}, element('th', {scope: 'row'}, 'Command'),
                    element('td', {}, element('code', {}, report.command))));
  document.getElementById('facts').append(...rows);
}
