//! The command lines that the documents show, for the tests that parse them; xtask includes this
//! file too.

use clap::error::{ContextKind, ContextValue, ErrorKind};
use std::fs;
use std::path::Path;

/// Around tables that `cargo xtask tables` writes.
const BEGIN: &str = "<!-- results:begin -->";
const END: &str = "<!-- results:end -->";

/// Has `command` parse every command line of the documents below `root` in which `arguments_of`
/// finds its program (it gives the number of words before the arguments): how many there are, and
/// those that are refused, with the reason.
pub fn check(
    root: &Path,
    command: &clap::Command,
    arguments_of: fn(&[&str]) -> Option<usize>,
) -> (usize, Vec<String>) {
    let folders = ["", "docs", "docs/measurements", "python"].iter();
    let entries = folders.flat_map(|folder| fs::read_dir(root.join(folder)).expect("a folder"));
    let pages = entries.map(|entry| entry.expect("an entry").path());
    let (mut count, mut refused) = (0, Vec::new());
    for page in pages.filter(|page| page.extension().is_some_and(|kind| kind == "md")) {
        let mut text = fs::read_to_string(&page).expect("a document");
        // What was recorded, is as it was typed.
        if let (Some(start), Some(end)) = (text.find(BEGIN), text.find(END)) {
            text.replace_range(start..end, "");
        }
        let lines = code(&text);
        let lines = lines
            .iter()
            .flat_map(|(code, whole)| code.lines().map(move |line| (line, *whole)));
        for (line, whole) in lines {
            let words = words(line);
            let Some(skipped) = arguments_of(&words) else {
                continue;
            };
            count += 1;
            let arguments = ["program"].iter().chain(&words[skipped..]);
            let result = command.clone().try_get_matches_from(arguments);
            let fine = result
                .as_ref()
                .map_or_else(|error| may_be_shown(error, whole), |_| true);
            if let (Err(error), false) = (result, fine) {
                refused.push(format!("{}: {line}\n{error}", page.display()));
            }
        }
    }
    (count, refused)
}

/// Whether a line that fails so may stand in a document.
fn may_be_shown(error: &clap::Error, whole: bool) -> bool {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => true,
        // In a sentence some arguments may do, and options without their values.
        ErrorKind::MissingRequiredArgument => !whole,
        ErrorKind::InvalidValue => {
            let value = error.get(ContextKind::InvalidValue);
            !whole && matches!(value, Some(ContextValue::String(value)) if value.is_empty())
        }
        _ => false,
    }
}

/// The code of a document: blocks of shell, which are whole, and code within lines.
fn code(text: &str) -> Vec<(&str, bool)> {
    let mut code = Vec::new();
    for (i, part) in text.split("```").enumerate() {
        if i % 2 == 0 {
            code.extend(part.split('`').skip(1).step_by(2).map(|code| (code, false)));
        } else if let Some((language, block)) = part.split_once('\n') {
            match language {
                "sh" => code.push((block, true)),
                // Between commands stands what they print.
                "console" => {
                    let commands = block.lines().filter(|line| line.starts_with("$ "));
                    code.extend(commands.map(|line| (line, true)));
                }
                _ => {}
            }
        }
    }
    code
}

/// The words of a command, up to a comment, a pipe or the like. `…` stands for anything, a capital
/// letter for a number.
fn words(line: &str) -> Vec<&str> {
    let ends = |word: &&str| ["#", "|", ">", ">>", "&&", ";"].contains(word);
    let words = line.split_whitespace().skip_while(|word| *word == "$");
    let words = words.take_while(|word| !ends(word));
    let words = words.filter(|word| !word.starts_with('…'));
    // Brackets: an option that may be left out; the others: `eval "$(…)"`.
    let words = words.map(|word| word.trim_matches(['[', ']', ')', '"']));
    let number = |word: &str| word.len() == 1 && word.bytes().all(|byte| byte.is_ascii_uppercase());
    words
        .map(|word| if number(word) { "1" } else { word })
        .collect()
}
