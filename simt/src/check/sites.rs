//! Source locations as 16-bit numbers, to keep them beside every granule.

use std::cell::Cell;
use std::panic::Location;
use std::sync::{PoisonError, RwLock};

pub(crate) type Site = &'static Location<'static>;

static SITES: RwLock<Vec<Site>> = RwLock::new(Vec::new());

const CACHE: usize = 256;

thread_local! {
    static RECENT: [Cell<(usize, u16)>; CACHE] = const { [const { Cell::new((0, 0)) }; CACHE] };
}

/// The number of a location. All locations past the first 65,535 share the last number.
pub(crate) fn number(site: Site) -> u16 {
    let address = std::ptr::from_ref(site) as usize;
    RECENT.with(|recent| {
        let entry = &recent[address / align_of::<Location<'_>>() % CACHE];
        let (known, number) = entry.get();
        if known == address {
            return number;
        }
        let number = look_up(site);
        entry.set((address, number));
        number
    })
}

fn look_up(site: Site) -> u16 {
    let mut sites = SITES.write().unwrap_or_else(PoisonError::into_inner);
    let known = sites.iter().position(|&other| other == site);
    let number = known.unwrap_or_else(|| {
        if sites.len() <= usize::from(u16::MAX) {
            sites.push(site);
        }
        sites.len() - 1
    });
    number as u16
}

/// The location of a number.
pub(crate) fn site(number: u16) -> Site {
    SITES.read().unwrap_or_else(PoisonError::into_inner)[usize::from(number)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_name_their_locations() {
        let sites = [Location::caller(), Location::caller()];
        for here in sites {
            assert_eq!(site(number(here)), here);
        }
        assert_ne!(number(sites[0]), number(sites[1]));
    }
}
