//! Log records, for programs that pass them on.
//!
//! The library logs through the `log` crate, and installs no logger of its own.
//!
//! | level | what |
//! | --- | --- |
//! | error | a bug: of memlock, or of what it was given to call |
//! | warn | something is lost, or about to be, and perhaps reported in no other way |
//! | info | a server is out of reach, or back again; something is left for later |
//! | debug | what goes on without problems, or is mended at once |
//!
//! A logger may call anything of memlock, and may take its time: so **nothing is logged while a
//! mutex of ours is locked**, and nothing on the way of an acquisition or a release without
//! problems.

/// The parts of the library that people know, which are modules, or have modules.
const PARTS: [&str; 9] =
    ["mutex", "semaphore", "counter", "distinct", "renewal", "wait", "notify", "store", "bare"];

/// The name by which people know the part of the library that a message comes from, such as
/// "memlock.renewal"; `None` for messages of other libraries. What belongs to no other part belongs
/// to "memlock.client".
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
