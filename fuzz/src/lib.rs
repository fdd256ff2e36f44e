//! What is fuzzed: each target has a file here, with what is promised of it, and one in `bin/`, by
//! which libFuzzer runs it. Its corpus is `../corpus/TARGET.txt`.
//!
//! The gate replays the corpora on stable Rust, in the unit tests of the crate that a target is
//! about: these files are modules of them, so that no crate is compiled once more for that.

pub mod admin;
pub mod input;
pub mod lists;
pub mod locks;
pub mod names;
pub mod owner;
pub mod permits;
pub mod replies;
pub mod scene;
pub mod semaphores;
pub mod servers;
pub mod store;
pub mod time;
pub mod urls;
pub mod waiters;
pub mod wake_messages;
pub mod wire;

#[cfg(test)]
mod corpus;
// About other crates than memlock-core, whose tests replay these.
#[cfg(not(test))]
pub mod ffi;
#[cfg(not(test))]
pub mod typed;

#[cfg(test)]
mod no_input_of_its_corpus_breaks {
    use super::corpus;

    macro_rules! targets {
        ($($target:ident)*) => {
            $(#[test]
            fn $target() {
                corpus::replay(stringify!($target), super::$target::run);
            })*

            #[test]
            fn no_corpus_is_forgotten() {
                // Those of memlock-ffi and memlock-cli are the last two.
                let mut replayed = vec![$(stringify!($target),)* "ffi", "typed"];
                replayed.sort_unstable();
                assert_eq!(corpus::targets(), replayed);
            }
        };
    }

    targets!(
        admin lists locks names owner permits replies semaphores servers urls waiters wake_messages
    );
}
