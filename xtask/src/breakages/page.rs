//! What docs/testing.md promises.

/// A row of one of its tables.
#[derive(Debug, PartialEq, Eq)]
pub struct Row<'a> {
    /// The first column.
    pub promise: &'a str,
    /// Tests of the second column: a file in Rust or Python, and a function.
    pub tests: Vec<&'a str>,
}

/// Rows of the tables whose columns are promises and tests.
pub fn rows(text: &str) -> Vec<Row<'_>> {
    let mut rows = Vec::new();
    let mut inside = false;
    for line in text.lines() {
        if line == "| promise | test |" {
            inside = true;
        } else if !line.starts_with('|') {
            inside = false;
        } else if inside && !line.starts_with("|---") {
            let cells = line.trim_matches('|').split_once(" | ");
            rows.extend(cells.map(|(promise, tests)| Row {
                promise: promise.trim(),
                tests: named(tests).collect(),
            }));
        }
    }
    rows
}

fn named(cell: &str) -> impl Iterator<Item = &str> {
    let code = cell.split('`').skip(1).step_by(2);
    code.filter(|code| code.contains(".rs::") || code.contains(".py::"))
}
