//! Standard output that may be closed while the program still has something to say.

use super::error::{CliError, Result};
use std::io::{self, Write};

/// Standard output. Once its reader is gone (`| head`) the rest is dropped, and the exit status
/// still tells the result.
pub struct Output {
    stdout: io::Stdout,
    closed: bool,
}

impl Output {
    /// The process's standard output.
    pub fn stdout() -> Self {
        Self {
            stdout: io::stdout(),
            closed: false,
        }
    }

    /// Writes `text` and a line break.
    pub fn line(&mut self, text: impl AsRef<str>) -> Result<()> {
        if self.closed {
            return Ok(());
        }
        let mut stdout = self.stdout.lock();
        let written = writeln!(stdout, "{}", text.as_ref()).and_then(|()| stdout.flush());
        match written {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                self.closed = true;
                Ok(())
            }
            written => written.map_err(CliError::Stdout),
        }
    }
}

/// Prints an error and its causes to standard error, if anyone listens.
pub fn report(error: &dyn std::error::Error) {
    let mut stderr = io::stderr().lock();
    let _ = writeln!(stderr, "error: {error}");
}

/// Rows of text in columns: the first aligned to the left, the others to the right.
pub fn columns(rows: &[Vec<String>]) -> Vec<String> {
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells
            .map(|cell: &String| cell.chars().count())
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..count).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row
            .iter()
            .zip(&widths)
            .enumerate()
            .map(|(column, (cell, width))| {
                if column == 0 {
                    format!("{cell:<width$}")
                } else {
                    format!("{cell:>width$}")
                }
            });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

/// `n` with its thousands set apart.
pub fn thousands(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_set_apart() {
        let cases = [
            (0, "0"),
            (999, "999"),
            (1000, "1,000"),
            (1_234_567, "1,234,567"),
        ];
        for (n, text) in cases {
            assert_eq!(thousands(n), text);
        }
    }

    #[test]
    fn columns_align() {
        let rows = [
            vec!["a".to_owned(), "1".to_owned()],
            vec!["bc".to_owned(), "100".to_owned()],
        ];
        assert_eq!(columns(&rows), ["a     1", "bc  100"]);
    }
}
