// Draws the report of a conformance run.

const counted = (count, one, more) => integer(count) + ' ' + (count === 1 ? one : more);

function claimCell(cell) {
  if (!cell) return element('td', {class: 'not-asked'}, '-');
  return element('td', {class: cell.outcome, title: counted(cell.cases, 'case', 'cases')}, cell.text);
}

function claimHeading(claim) {
  const failed = claim.failed_tests.map(
      (test) => element('span', {class: 'failed'}, 'FAIL: a part of ' + test + ' failed'));
  return element('tr', {class: 'claim'}, element('td', {colspan: 2 + report.world_sizes.length},
      element('b', {}, claim.name), ' ', ...failed,
      element('p', {}, claim.says || 'A claim that this report does not know.'),
      element('small', {}, claim.allowed ? 'Allowed: ' + claim.allowed + '.' : '')));
}

// A row of which nothing was measured.
function emptyRow(backend, why) {
  return element('tr', {class: 'empty'}, element('td', {}, backend),
                 element('td', {class: 'skipped', colspan: 1 + report.world_sizes.length}, why));
}

function claimRows(claim) {
  const measured = claim.rows.map((row) => {
    const cells = Object.fromEntries(row.cells.map((cell) => [cell.world_size, cell]));
    return element('tr', {}, element('td', {}, row.backend), element('td', {}, row.types.join(', ')),
                   ...report.world_sizes.map((size) => claimCell(cells[size])));
  });
  const missing = claim.missing.map(({backend, test, skipped}) => emptyRow(
      backend, skipped ? 'skip: ' + skipped + ' (' + test + ')' : 'not run: ' + test + ' left no result'));
  return [claimHeading(claim), ...measured, ...missing];
}

function totalsText() {
  const {totals} = report;
  return counted(totals.claims_hold, 'claim holds', 'claims hold') + ', ' + totals.claims_failed +
      (totals.claims_failed === 1 ? ' fails' : ' fail') +
      (totals.claims_not_run ? ', ' + totals.claims_not_run + ' not run' : '');
}

function testsText() {
  const {totals} = report;
  return counted(totals.tests_passed, 'test passes', 'tests pass') + ', ' + totals.tests_failed +
      (totals.tests_failed === 1 ? ' fails' : ' fail') +
      (totals.tests_skipped ? ', ' + totals.tests_skipped + ' skipped' : '');
}

// As GoogleTest writes it, to the second.
const when = (started) => started.replace('T', ' ').replace(/\.\d+$/, '') || 'unknown';
const begunText = () => when(report.first_started) + ' to ' + when(report.last_started);

function finding({target, test, what}) {
  return element('div', {class: 'finding'}, element('h3', {}, target + (test ? ', ' + test : '')), element('p', {}, what));
}

function reasonRow(...texts) {
  return element('tr', {}, ...texts.map((text) => element('td', {}, text)));
}

function reasons() {
  const tests = report.skipped.map(({target, tests, why}) => reasonRow(target, counted(tests, 'test', 'tests'), why));
  const rows = report.claims.flatMap(({name, missing}) => missing.map(
      ({backend, test, skipped}) => reasonRow(name + ', ' + backend, skipped ? 'skipped' : 'not run',
                                              skipped ? skipped + ' (' + test + ')' : test + ' left no result')));
  return [...tests, ...rows];
}

function targetRow({label, passed, failed, skipped, seconds, started}) {
  return element('tr', {}, element('td', {}, label), element('td', {}, integer(passed)),
      element('td', {class: failed ? 'failed' : ''}, integer(failed)), element('td', {}, integer(skipped)),
      element('td', {}, seconds.toFixed(1)), element('td', {}, when(started)));
}

function put(id, made, isEmpty) {
  document.getElementById(id).append(...made);
  const section = document.getElementById(id + '-section');
  if (section) section.hidden = isEmpty;
}

document.getElementById('subtitle').textContent = testsText() + '; begun ' + begunText();
document.getElementById('verdict').textContent = totalsText();
put('failures', report.failures.map(finding), report.failures.length === 0);
const worldSizes = report.world_sizes.map((size, index) => index === 0 ? ranks(size) : size);
const claims = tableElement(['backend', 'type', ...worldSizes], report.claims.flatMap(claimRows));
claims.firstChild.className = 'claims';
put('claims', [claims]);
const skipped = tableElement(['what', 'how many', 'why'], reasons());
skipped.firstChild.className = 'reasons';
put('skipped', [skipped], reasons().length === 0);
const targets = tableElement(['test', 'passed', 'failed', 'skipped', 'seconds', 'begun'], report.targets.map(targetRow));
put('targets', [targets]);
fillFacts([...Object.entries(report.versions), ['Test logs', report.testlogs], ['Tests begun', begunText()]]);
