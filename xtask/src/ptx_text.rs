//! The structure of a PTX file: entries, functions, instructions.

/// An `.entry` with its body.
#[derive(Clone, Debug, Default)]
pub struct Entry<'a> {
    /// The symbol.
    pub name: &'a str,
    /// Line of `.entry`, from 1.
    pub line: usize,
    /// The lines between the parameter list and the body, such as `.maxntid`.
    pub directives: Vec<Line<'a>>,
    /// Size of all parameters, in bytes.
    pub param_bytes: usize,
    /// The lines of the body.
    pub body: Vec<Line<'a>>,
}

/// A `.func`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Function<'a> {
    /// The symbol.
    pub name: &'a str,
    /// First line, from 1.
    pub line: usize,
    /// Last line.
    pub end: usize,
    /// Declared only.
    pub external: bool,
}

/// A line of the file, without its comment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line<'a> {
    /// From 1.
    pub number: usize,
    /// Trimmed.
    pub text: &'a str,
}

/// A PTX file.
#[derive(Clone, Debug, Default)]
pub struct Module<'a> {
    /// Operand of `.version`.
    pub version: &'a str,
    /// Operand of `.target`.
    pub target: &'a str,
    /// The entries, in order.
    pub entries: Vec<Entry<'a>>,
    /// The functions, in order.
    pub functions: Vec<Function<'a>>,
}

/// What the lines being read belong to.
enum Inside<'a> {
    Nothing,
    Entry {
        entry: Entry<'a>,
        depth: i32,
    },
    Function {
        function: Function<'a>,
        depth: i32,
        opened: bool,
    },
}

impl<'a> Module<'a> {
    /// Reads the structure of a PTX file. Understands what compilers write: a directive a line,
    /// a body's braces balanced.
    pub fn parse(text: &'a str) -> Self {
        let mut module = Self::default();
        let mut inside = Inside::Nothing;
        for (index, line) in text.lines().enumerate() {
            let line = Line {
                number: index + 1,
                text: without_comment(line).trim(),
            };
            inside = match inside {
                Inside::Nothing => module.outside(line),
                Inside::Entry { entry, depth } => module.in_entry(entry, depth, line),
                Inside::Function {
                    function,
                    depth,
                    opened,
                } => module.in_function(function, depth, opened, line),
            };
        }
        module
    }

    fn outside(&mut self, line: Line<'a>) -> Inside<'a> {
        if let Some(version) = line.text.strip_prefix(".version ") {
            self.version = version.trim();
        } else if let Some(target) = line.text.strip_prefix(".target ") {
            self.target = target.trim();
        } else if let Some((_, rest)) = line.text.split_once(".entry ") {
            let name = rest.split('(').next().unwrap_or(rest).trim();
            let entry = Entry {
                name,
                line: line.number,
                ..Entry::default()
            };
            let parameters = rest
                .split_once('(')
                .map_or("", |(_, parameters)| parameters);
            return self.in_entry(
                entry,
                0,
                Line {
                    text: parameters,
                    ..line
                },
            );
        } else if let Some((before, rest)) = line.text.split_once(".func ") {
            let external = before.contains(".extern");
            let name = function_name(rest);
            let function = Function {
                name,
                line: line.number,
                end: line.number,
                external,
            };
            return self.in_function(function, 0, false, line);
        }
        Inside::Nothing
    }

    fn in_entry(&mut self, mut entry: Entry<'a>, depth: i32, line: Line<'a>) -> Inside<'a> {
        let after = depth + braces(line.text);
        if depth > 0 {
            if after > 0 {
                entry.body.push(line);
            } else {
                self.entries.push(entry);
                return Inside::Nothing;
            }
        } else if line.text.contains(".param") {
            entry.param_bytes += parameter_bytes(line.text);
        } else if line.text.starts_with('.') {
            entry.directives.push(line);
        }
        Inside::Entry {
            entry,
            depth: after,
        }
    }

    fn in_function(
        &mut self,
        mut function: Function<'a>,
        depth: i32,
        opened: bool,
        line: Line<'a>,
    ) -> Inside<'a> {
        let depth = depth + braces(line.text);
        let opened = opened || line.text.contains('{');
        function.end = line.number;
        if function.name.is_empty() {
            function.name = function_name(line.text);
        }
        // A declaration ends with a semicolon, a definition with its brace.
        if (opened && depth == 0) || (!opened && line.text.ends_with(';')) {
            self.functions.push(function);
            return Inside::Nothing;
        }
        Inside::Function {
            function,
            depth,
            opened,
        }
    }
}

impl<'a> Entry<'a> {
    /// The operand of a directive such as `.maxntid`, with its line.
    pub fn directive(&self, name: &str) -> Option<(usize, &'a str)> {
        self.directives.iter().find_map(|line| {
            let rest = line.text.strip_prefix(name)?;
            rest.starts_with(char::is_whitespace)
                .then(|| (line.number, rest.trim()))
        })
    }

    /// The instructions and declarations of the body: each statement's line and text, without
    /// label and predicate.
    pub fn statements(&self) -> impl Iterator<Item = Line<'a>> {
        self.body.iter().flat_map(|line| {
            let statements = line.text.split(';').map(bare);
            statements.filter(|text| !text.is_empty()).map(|text| Line {
                number: line.number,
                text,
            })
        })
    }
}

/// The opcode or directive that a statement begins with.
pub fn opcode(statement: &str) -> &str {
    statement.split_whitespace().next().unwrap_or_default()
}

fn without_comment(line: &str) -> &str {
    line.split_once("//").map_or(line, |(code, _)| code)
}

fn braces(text: &str) -> i32 {
    text.chars()
        .map(|c| i32::from(c == '{') - i32::from(c == '}'))
        .sum()
}

/// A statement without the brace that opens its scope, its label and its predicate.
fn bare(statement: &str) -> &str {
    let mut text = statement.trim().trim_matches(['{', '}']).trim();
    if let Some((label, rest)) = text.split_once(':') {
        // Not the `::` of a qualifier.
        if !label.contains(char::is_whitespace) && !rest.starts_with(':') {
            text = rest.trim();
        }
    }
    if text.starts_with('@') {
        text = text
            .split_once(char::is_whitespace)
            .map_or("", |(_, rest)| rest.trim());
    }
    text
}

/// The name in what follows `.func`: after the return value, if there is one.
fn function_name(text: &str) -> &str {
    let text = text.trim();
    let text = match text.strip_prefix('(') {
        Some(rest) => rest.split_once(')').map_or("", |(_, rest)| rest.trim()),
        None => text,
    };
    text.split(['(', ';', '{'])
        .next()
        .unwrap_or_default()
        .trim()
}

/// Size of the parameters that a line declares, in bytes.
fn parameter_bytes(text: &str) -> usize {
    let declarations = text
        .split(',')
        .filter(|declaration| declaration.contains(".param"));
    declarations.map(declared_bytes).sum()
}

fn declared_bytes(declaration: &str) -> usize {
    let bits = declaration.split_whitespace().find_map(|word| {
        let word = word
            .strip_prefix('.')?
            .trim_start_matches(['b', 'u', 's', 'f']);
        word.parse::<usize>().ok()
    });
    let count = declaration
        .split_once('[')
        .and_then(|(_, rest)| rest.split_once(']'))
        .map_or(Some(1), |(count, _)| count.trim().parse::<usize>().ok());
    bits.unwrap_or(0) / 8 * count.unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
//
.version 8.0
.target sm_90
.extern .shared .align 128 .b8 memory[];
.extern .func (.param .b32 value) helper
(
\t.param .b64 helper_param_0
)
.noreturn
;
.visible .func panicking(
\t.param .b64 panicking_param_0
)
{
$L__BB0_1:
\tbra.uni \t$L__BB0_1;
}
.visible .entry kernel(
\t.param .align 8 .b8 kernel_param_0[40],
\t.param .u32 kernel_param_1
)
.maxntid 256
{
\t.reg .b32 \t%r<9>;
\t// begin inline asm
\t{ .reg .b64 state; mbarrier.arrive.shared::cta.b64 state, [%r1]; }
$L__BB1_2: @%p1 bra \t$L__BB1_2; // again
\tld.global.v4.b32 {%r1, %r2, %r3, %r4}, [%rd1];
}
.visible .entry last()
{
\tret;
}
";

    #[test]
    fn entries_and_functions_are_told_apart() {
        let module = Module::parse(TEXT);
        assert_eq!((module.version, module.target), ("8.0", "sm_90"));
        let names: Vec<_> = module
            .entries
            .iter()
            .map(|entry| (entry.name, entry.line))
            .collect();
        assert_eq!(names, [("kernel", 18), ("last", 30)]);
        let helper = Function {
            name: "helper",
            line: 5,
            end: 10,
            external: true,
        };
        let panicking = Function {
            name: "panicking",
            line: 11,
            end: 17,
            external: false,
        };
        assert_eq!(module.functions, [helper, panicking]);
    }

    #[test]
    fn an_entry_knows_its_parameters_and_directives() {
        let module = Module::parse(TEXT);
        assert_eq!(module.entries[0].param_bytes, 44);
        assert_eq!(module.entries[0].directive(".maxntid"), Some((22, "256")));
        assert_eq!(module.entries[0].directive(".max"), None);
        assert_eq!(module.entries[1].directive(".maxntid"), None);
    }

    #[test]
    fn statements_have_no_label_predicate_or_scope() {
        let module = Module::parse(TEXT);
        let statements: Vec<_> = module.entries[0].statements().collect();
        let opcodes: Vec<_> = statements
            .iter()
            .map(|s| (s.number, opcode(s.text)))
            .collect();
        assert_eq!(
            opcodes,
            [
                (24, ".reg"),
                (26, ".reg"),
                (26, "mbarrier.arrive.shared::cta.b64"),
                (27, "bra"),
                (28, "ld.global.v4.b32"),
            ]
        );
    }
}
