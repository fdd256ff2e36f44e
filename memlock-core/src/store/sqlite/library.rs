//! Which versions of SQLite are refused.
//!
//! memlock contains a SQLite of its own. Distributions may build it against the library of the
//! system instead, which may be older, and be replaced at any time: the version is asked for when a
//! file is connected to.

use crate::error::{Error, Result};

/// # Errors
/// If this SQLite damages files.
pub(super) fn check() -> Result<()> {
    #[cfg(test)]
    if let Some(version) = tests::PRETENDED.get() {
        return check_version(version);
    }
    check_version(rusqlite::version_number())
}

fn check_version(version: i32) -> Result<()> {
    if !resets_logs_too_early(version) {
        return Ok(());
    }
    let (major, minor, patch) = (version / 1_000_000, version / 1000 % 1000, version % 1000);
    Err(Error::config(format!(
        "This memlock was built to use the SQLite library of the system, whose version \
         {major}.{minor}.{patch} can damage a file that several processes use (the \"WAL-reset\" bug \
         of SQLite): update that library to 3.51.3 or later (or 3.50.7, or 3.44.6), or build \
         memlock with the SQLite that it contains."
    )))
}

/// Whether a checkpoint may not notice that another process has restarted the log, and skip what
/// was written into it since: SQLite calls that the "WAL-reset" bug. It is as old as the log, and
/// was mended in 3.51.3, and in two older series. 3.52.0 was withdrawn, but is mended as well.
fn resets_logs_too_early(version: i32) -> bool {
    const LOGS: i32 = 3_007_000;
    const MENDED: i32 = 3_051_003;
    const MENDED_SERIES: [std::ops::Range<i32>; 2] = [3_044_006..3_045_000, 3_050_007..3_051_000];
    (LOGS..MENDED).contains(&version)
        && !MENDED_SERIES.iter().any(|series| series.contains(&version))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::Client;

    thread_local! {
        /// The version that this thread finds.
        pub(super) static PRETENDED: Cell<Option<i32>> = const { Cell::new(None) };
    }

    #[test]
    fn no_file_is_connected_to_by_a_library_that_damages_it() {
        PRETENDED.set(Some(3_046_001));
        let error = Client::connect("sqlite:///nowhere/locks.db").map(drop).unwrap_err();
        assert_eq!(error.kind(), crate::ErrorKind::Config);
        let said = error.to_string();
        assert!(said.contains("/nowhere/locks.db") && said.contains("3.46.1"), "{said}");
        PRETENDED.set(None);
        assert!(Client::connect("sqlite:///nowhere/locks.db").is_ok(), "{}", rusqlite::version());
    }

    #[test]
    fn versions_that_damage_files_are_refused_by_name() {
        for (version, name) in [
            (3_007_000, "3.7.0"),
            (3_040_001, "3.40.1"),
            (3_044_005, "3.44.5"),
            (3_045_000, "3.45.0"),
            (3_050_006, "3.50.6"),
            (3_051_000, "3.51.0"),
            (3_051_002, "3.51.2"),
        ] {
            let error = check_version(version).unwrap_err();
            assert_eq!(error.kind(), crate::ErrorKind::Config);
            let said = error.to_string();
            assert!(said.contains(&format!("version {name} can damage")), "{said}");
        }
    }

    #[test]
    fn mended_versions_are_used() {
        for version in
            [3_006_023, 3_044_006, 3_044_999, 3_050_007, 3_050_999, 3_051_003, 3_052_000, 4_000_000]
        {
            assert!(check_version(version).is_ok(), "{version}");
        }
    }
}
