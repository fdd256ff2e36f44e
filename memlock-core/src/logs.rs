//! Log records, for programs that forward them.
//!
//! The library logs through the `log` crate, and installs no logger of its own.
//!
//! | level | meaning |
//! | --- | --- |
//! | error | a bug in memlock, or in a callback |
//! | warn | something is lost or at risk, and perhaps reported in no other way |
//! | info | a server is unreachable, or reachable again; work is left for later |
//! | debug | normal operation, and problems that are resolved immediately |
//!
//! A logger may call any function of memlock, and may take any time. **Nothing is logged while a
//! mutex of this library is locked**, and acquisitions and releases without failures log nothing.

/// The parts of the library that have a public name: each of them is a module, or has modules.
const PARTS: [&str; 9] =
    ["mutex", "semaphore", "counter", "distinct", "renewal", "wait", "notify", "store", "bare"];

/// The public name of the part of the library that a message comes from, such as "memlock.renewal";
/// `None` for messages of other libraries. Messages of all other modules belong to
/// "memlock.client".
pub fn name(target: &str) -> Option<String> {
    let modules = target.strip_prefix(env!("CARGO_CRATE_NAME"))?;
    if modules.is_empty() {
        return Some("memlock".to_owned());
    }
    let mut modules = modules.strip_prefix("::")?.split("::");
    let part = modules.find(|module| PARTS.contains(module)).unwrap_or("client");
    Some(format!("memlock.{part}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_known_by_the_part_that_they_come_from() {
        assert_eq!(name("memlock_core::orphan").as_deref(), Some("memlock.client"));
        assert_eq!(name("memlock_core").as_deref(), Some("memlock"));
        assert_eq!(name("memlock_core::renewal").as_deref(), Some("memlock.renewal"));
        assert_eq!(name("memlock_core::renewal::entry").as_deref(), Some("memlock.renewal"));
        assert_eq!(name("memlock_corer::renewal"), None);
        assert_eq!(name("memcache::exp"), None);
    }
}
