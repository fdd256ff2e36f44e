//! Replaying the packed corpora, whose form is that of `corpora.py`.
#![allow(dead_code, unreachable_pub, reason = "each crate that has this file uses a part of it")]

use std::path::Path;

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../fuzz/corpus");

/// Runs a target on each input of its corpus.
pub fn replay(target: &str, run: fn(&[u8])) {
    let corpus = std::fs::read_to_string(Path::new(FOLDER).join(target).with_extension("txt"))
        .expect("a corpus");
    let breaking = |line: &&str| {
        let (_, text) = line.split_once(' ').expect("a name and an input");
        let input = unescape(text).expect("an input as corpora.py writes it");
        std::panic::catch_unwind(|| run(&input)).is_err()
    };
    let broken: Vec<&str> = corpus.lines().filter(breaking).collect();
    assert!(broken.is_empty(), "{target} is broken by:\n{}", broken.join("\n"));
}

/// All targets that have a corpus, in alphabetical order.
pub fn targets() -> Vec<String> {
    let files = std::fs::read_dir(FOLDER).expect("the corpora");
    let stem = |path: &Path| path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
    let mut targets: Vec<String> =
        files.filter_map(|file| stem(&file.expect("a corpus").path())).collect();
    targets.sort_unstable();
    targets
}

/// Turns the text of an input back into the input.
fn unescape(text: &str) -> Option<Vec<u8>> {
    let mut bytes = text.bytes();
    let mut input = Vec::new();
    while let Some(byte) = bytes.next() {
        input.push(match byte {
            b'\\' => match bytes.next()? {
                b'n' => b'\n',
                b'r' => b'\r',
                b't' => b'\t',
                b'\\' => b'\\',
                b'x' => {
                    let digits = [bytes.next()?, bytes.next()?];
                    u8::from_str_radix(str::from_utf8(&digits).ok()?, 16).ok()?
                }
                _ => return None,
            },
            visible => visible,
        });
    }
    Some(input)
}
