// Draws the report of a conformance run.

const counted = (count, one, more) => integer(count) + ' ' + (count === 1 ? one : more);

function claimCell(cell) {
  if (!cell) return element('td', {class: 'not-asked'}, '-');
  return element('td', {class: cell.outcome, title: counted(cell.cases, 'case', 'cases')}, cell.text);
}

function claimHeading(claim) {
  const failed = claim.failed_tests.map(
      (test) => element('span', {class: 'failed'}, 'FAIL: a part of ' + test + ' failed'));
  const words = {in_part: 'holds in part', not_run: 'not run'}[claim.outcome];
  const part = words ? [element('span', {class: claim.outcome}, words)] : [];
  return element('tr', {class: 'claim'}, element('td', {colspan: 2 + report.world_sizes.length},
      element('b', {}, claim.name), ' ', ...failed, ...part,
      element('p', {}, claim.says || 'A claim that this report does not know.'),
      element('small', {}, claim.allowed ? 'Allowed: ' + claim.allowed + '.' : '')));
}

const gpuText = ({outcome, why, test, asks}) => (outcome === 'failed' ? 'FAIL' : outcome.replace('_', ' ')) +
    (why ? ': ' + why : '') + ' (' + test + '; it asks ' + asks + ')';

// A row that records no numbers.
function gpuRow(row) {
  return element('tr', {class: 'empty'}, element('td', {}, row.backend),
                 element('td', {class: row.outcome, colspan: 1 + report.world_sizes.length}, gpuText(row)));
}

function claimRows(claim) {
  const measured = claim.rows.map((row) => {
    const cells = Object.fromEntries(row.cells.map((cell) => [cell.world_size, cell]));
    return element('tr', {}, element('td', {}, row.backend), element('td', {}, row.types.join(', ')),
                   ...report.world_sizes.map((size) => claimCell(cells[size])));
  });
  return [claimHeading(claim), ...measured, ...claim.gpu_rows.map(gpuRow)];
}

function totalsText() {
  const {totals} = report;
  return counted(totals.claims_hold, 'claim holds', 'claims hold') + ', ' + totals.claims_in_part + ' in part, ' +
      totals.claims_not_run + ' not run, ' + counted(totals.claims_failed, 'fails', 'fail');
}

function testsText() {
  const {totals} = report;
  const configurations = Object.keys(totals.configurations).length;
  return counted(totals.tests_passed, 'test passes', 'tests pass') + ', ' +
      counted(totals.tests_failed, 'fails', 'fail') + ', ' + totals.tests_skipped + ' skipped' +
      (totals.targets_older ? '; ' + totals.targets_older + ' of ' + report.targets.length +
                              ' targets older than the checked-out commit' : '') +
      (configurations > 1 ? '; ' + configurations + ' configurations mixed' : '');
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
      ({backend, test, cells, expected}) => reasonRow(
          name + ', ' + backend, cells + ' of ' + counted(expected, 'cell', 'cells'), test + ' left no result')));
  return [...tests, ...rows];
}

function targetRow({label, passed, failed, skipped, seconds, started, older, configurations}) {
  return element('tr', {}, element('td', {}, label), element('td', {}, integer(passed)),
      element('td', {class: failed ? 'failed' : ''}, integer(failed)), element('td', {}, integer(skipped)),
      element('td', {}, seconds.toFixed(1)),
      element('td', {class: older ? 'older' : ''}, when(started) + (older ? ', older than the commit' : '')),
      element('td', {}, configurations.join('; ')));
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
const targets = tableElement(['test', 'passed', 'failed', 'skipped', 'seconds', 'begun', 'built'], report.targets.map(targetRow));
put('targets', [targets]);
fillFacts([...Object.entries(report.versions), ['Test logs', report.testlogs], ['Tests begun', begunText()],
           ['Committed', report.committed ? when(report.committed) : 'unknown'],
           ...Object.entries(report.totals.configurations).map(
               ([configuration, count]) => ['Built', configuration + ': ' + counted(count, 'target', 'targets')])]);
