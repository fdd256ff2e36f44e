//! Histories that a test makes up.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use super::{Call, Reader};
use crate::launch::number;

/// The file of a made-up history, removed when it is dropped.
#[derive(Debug)]
pub struct Forged(pub PathBuf);

impl Forged {
    /// A line of the text is `<ms> <thread> <event>`, or `<ms> <event>` for thread 0. The event may
    /// name moments as `@<ms>`.
    pub fn of(text: &str) -> Forged {
        let name = format!("memlock-forged-{}-{}", std::process::id(), number());
        let mut written = String::new();
        for line in text.lines().map(str::trim_start).filter(|line| !line.is_empty()) {
            let (ms, rest) = line.split_once(' ').expect("a moment and an event");
            let has_thread = rest.starts_with(|first: char| first.is_ascii_digit());
            let words = rest.split(' ').map(|word| match word.strip_prefix('@') {
                Some(ms) => format!("{ms}000000"),
                None => word.to_owned(),
            });
            let words = words.collect::<Vec<_>>().join(" ");
            written += &format!("{ms}000000 {}{words}\n", if has_thread { "" } else { "0 " });
        }
        let path = std::env::temp_dir().join(name);
        fs::write(&path, written).expect("a file of its own");
        Forged(path)
    }

    /// Its calls, with those under way, as those of this process.
    pub fn calls(&self, process: usize) -> Vec<Call> {
        let mut reader = Reader::new(process, self.0.clone());
        let mut calls = reader.read(Duration::MAX).expect("a history");
        calls.extend(reader.open().cloned());
        calls
    }
}

impl Drop for Forged {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}
