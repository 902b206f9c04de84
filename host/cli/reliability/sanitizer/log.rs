//! What compute-sanitizer writes.

use super::Tool;

/// Errors, hazards and warnings that the summary at the end of a log counts; `None` where there is
/// no summary.
#[cfg_attr(not(any(feature = "cuda", test)), allow(dead_code))]
pub fn problems(tool: Tool, log: &str) -> Option<u64> {
    let title = match tool {
        Tool::Racecheck => "RACECHECK SUMMARY:",
        _ => "ERROR SUMMARY:",
    };
    let lines = log.lines().filter_map(|line| line.split_once(title));
    let counts = lines.map(|(_, counts)| {
        let words = counts.split(|c: char| !c.is_ascii_digit());
        words.filter_map(|word| word.parse::<u64>().ok()).max()
    });
    // A process that forks has a summary each.
    counts.fold(None, |most, count| most.max(count))
}

/// The first lines that say what is wrong.
#[cfg_attr(not(any(feature = "cuda", test)), allow(dead_code))]
pub fn excerpt(log: &str) -> String {
    const LINES: usize = 6;
    let lines = log.lines().map(|line| line.trim_start_matches('=').trim());
    let lines = lines.filter(|line| !line.is_empty() && *line != "COMPUTE-SANITIZER");
    lines.take(LINES).collect::<Vec<_>>().join(" | ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summaries_are_counted_and_their_absence_is_noticed() {
        let clean = "========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n";
        assert_eq!(problems(Tool::Memcheck, clean), Some(0));
        let found = "========= Invalid __global__ write\n========= ERROR SUMMARY: 12 errors\n";
        assert_eq!(problems(Tool::Initcheck, found), Some(12));
        let races = "========= RACECHECK SUMMARY: 3 hazards displayed (1 error, 2 warnings)\n";
        assert_eq!(problems(Tool::Racecheck, races), Some(3));
        let warnings = "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)\n";
        assert_eq!(problems(Tool::Racecheck, warnings), Some(0));
        // Of another tool, of none, and of a process that never came so far.
        assert_eq!(problems(Tool::Racecheck, clean), None);
        assert_eq!(problems(Tool::Memcheck, races), None);
        assert_eq!(
            problems(Tool::Memcheck, "========= COMPUTE-SANITIZER\n"),
            None
        );
        // Two processes.
        assert_eq!(problems(Tool::Memcheck, &[found, clean].concat()), Some(12));
        assert_eq!(
            excerpt(found),
            "Invalid __global__ write | ERROR SUMMARY: 12 errors"
        );
    }
}
