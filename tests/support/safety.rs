//! The marker of assertions whose failure is a breach of safety.
//!
//! Safety is broken by two holders at once, by a fence that falls or is given twice, by more
//! permits out than there are, by a distinct list that accepts an item twice, by a client that
//! releases or extends another client's lock, and by a lock that is left behind without a holder
//! where none may be. A single such failure counts, however rarely it happens: the test runner
//! runs a failed test once more, but a failure with [`MARKER`] in its output is red, whatever the
//! second run shows. So an assertion that can fail because the machine was slow, such as one that
//! a lease may end before, is not marked.

/// How the message of a breach of safety begins. The runner never forgives it.
pub const MARKER: &str = "SAFETY VIOLATED: ";

/// [`assert!`] for what is a breach of safety if it is false: [`MARKER`] is put before the message.
///
/// ```should_panic
/// # use memlock_tests::assert_safe;
/// let (fence, last) = (7, 8);
/// assert_safe!(fence > last, "fence {fence} after {last}");
/// ```
#[macro_export]
macro_rules! assert_safe {
    ($condition:expr, $($message:tt)+) => {
        assert!($condition, "{}{}", $crate::safety::MARKER, format_args!($($message)+))
    };
}

/// [`assert_eq!`] for what is a breach of safety if the two differ, as [`assert_safe!`].
#[macro_export]
macro_rules! assert_safe_eq {
    ($found:expr, $wanted:expr, $($message:tt)+) => {
        match (&$found, &$wanted) {
            (found, wanted) => $crate::assert_safe!(
                *found == *wanted,
                "{}: {found:?}, and it must be {wanted:?}",
                format_args!($($message)+)
            ),
        }
    };
}

#[cfg(test)]
mod tests {
    use std::panic::{UnwindSafe, catch_unwind};

    use super::MARKER;

    fn message(check: impl FnOnce() + UnwindSafe) -> Option<String> {
        catch_unwind(check).err().and_then(|panic| panic.downcast_ref::<String>().cloned())
    }

    #[test]
    fn a_breach_is_marked_and_what_is_safe_passes() {
        let holders = |number| message(move || assert_safe!(number < 2, "{number} of {}", 1 + 1));
        assert_eq!(holders(1), None);
        assert_eq!(holders(2), Some(format!("{MARKER}2 of 2")));
        let same = |one, two| message(move || assert_safe_eq!(one, two, "ids of {}", "k"));
        assert_eq!(same(1, 1), None);
        assert_eq!(same(1, 2), Some(format!("{MARKER}ids of k: 1, and it must be 2")));
        assert_eq!(MARKER, "SAFETY VIOLATED: ");
    }
}
