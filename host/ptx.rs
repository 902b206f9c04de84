//! The kernels' PTX, embedded when the library was built.

include!(concat!(env!("OUT_DIR"), "/ptx.rs"));

/// What may stand before the first entry: every slice repeats it.
const HEADER: &[&str] = &[
    "//",
    ".version ",
    ".target ",
    ".address_size ",
    ".extern .shared ",
];
const ENTRY: &str = ".visible .entry ";
const END: &str = "\n}\n";

impl Module {
    /// The embedded module `name` that a device of compute capability `capability` (ten times)
    /// runs best.
    #[must_use]
    pub fn best(name: &str, capability: u32) -> Option<&'static Module> {
        let usable = MODULES
            .iter()
            .filter(|module| module.name == name && module.sm <= capability);
        usable.max_by_key(|module| module.sm)
    }

    /// A module of its own for one entry, which a driver compiles in a fraction of the time that
    /// the whole takes.
    ///
    /// `None` when there is no such entry, or when entries share more than the dynamic shared
    /// memory's name (functions, variables), as those of another compiler may.
    #[must_use]
    pub fn entry(&self, name: &str) -> Option<String> {
        let (header, mut rest) = self.ptx.split_at(self.ptx.find(ENTRY)?);
        let known = |line: &str| HEADER.iter().any(|start| line.starts_with(start));
        if !header.lines().all(|line| line.is_empty() || known(line)) {
            return None;
        }
        let mut found = None;
        while !rest.is_empty() {
            let signature = rest.strip_prefix(ENTRY)?;
            let (entry, after) = rest.split_at(rest.find(END)? + END.len());
            let parameters = signature.strip_prefix(name);
            if parameters.is_some_and(|parameters| parameters.starts_with('(')) {
                found = Some(entry);
            }
            rest = after.trim_start_matches('\n');
        }
        found.map(|entry| [header, entry].concat())
    }
}

#[cfg(test)]
mod tests;
