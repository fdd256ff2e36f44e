//! Whose vote an item is.
//!
//! The value of a vote is the record of the mutex and the number of the attempt, the word
//! `try=<number>`. A request of an attempt that was given up may arrive late, so its vote must not
//! be taken for one of a later attempt with the same token.

use crate::hash::{fnv1a, mix};
use crate::name::push_number;
use crate::owner::{OwnerRecord, Token};

const ATTEMPT: &str = " try=";

/// Whose vote it is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Ballot {
    /// Of one attempt of an acquisition.
    Of {
        /// The acquisition.
        token: Token,
        /// The attempt, counted in the client.
        attempt: u64,
    },
    /// Of a program that does not use memlock.
    Foreign(Vec<u8>),
}

impl Ballot {
    /// Reads the value of an item.
    pub(super) fn of(value: &[u8]) -> Ballot {
        let Some(OwnerRecord { token, .. }) = OwnerRecord::parse(value) else {
            return Ballot::Foreign(value.to_vec());
        };
        let attempt = split(value).1.and_then(|number| number.parse().ok());
        Ballot::Of { token, attempt: attempt.unwrap_or_default() }
    }

    /// The number that all that this ballot has stored has for a version.
    pub(super) fn number(&self) -> u64 {
        match self {
            Ballot::Of { token, attempt } => mix(token.hash() ^ mix(*attempt)),
            Ballot::Foreign(value) => mix(fnv1a(value)),
        }
    }

    /// The token, if memlock has stored it.
    pub(super) fn token(&self) -> Option<Token> {
        match self {
            Ballot::Of { token, .. } => Some(*token),
            Ballot::Foreign(_) => None,
        }
    }

    /// The value of its votes, for this record.
    pub(super) fn value(&self, record: &[u8]) -> Vec<u8> {
        let mut value = record.to_vec();
        if let Ballot::Of { attempt, .. } = self {
            value.extend_from_slice(ATTEMPT.as_bytes());
            push_number(*attempt, &mut value);
        }
        value
    }
}

/// The record that a vote's value contains.
pub(super) fn record(value: &[u8]) -> Vec<u8> {
    let (record, attempt) = split(value);
    if attempt.is_some() { record.to_vec() } else { value.to_vec() }
}

/// The record, and the number of the attempt.
fn split(value: &[u8]) -> (&[u8], Option<&str>) {
    let mark = ATTEMPT.as_bytes();
    let place = value.windows(mark.len()).rposition(|part| part == mark);
    let Some(place) = place else { return (value, None) };
    let number = std::str::from_utf8(&value[place + mark.len()..]).ok();
    let is_number = |text: &&str| text.bytes().all(|byte| byte.is_ascii_digit());
    (&value[..place], number.filter(is_number))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::owner::value_start;

    #[test]
    fn each_attempt_has_a_ballot_of_its_own() {
        let token = Token::from_bits(7);
        let record_of = [value_start(token), b"host 12 1700000000 rings".to_vec()].concat();
        let [first, second] = [1, 2].map(|attempt| Ballot::Of { token, attempt });
        let value = first.value(&record_of);
        assert!(value.ends_with(b" rings try=1"));
        assert_eq!(Ballot::of(&value), first);
        assert_ne!(first.number(), second.number());
        assert_eq!(record(&value), record_of);
        assert_eq!(record(&record_of), record_of);
        assert!(OwnerRecord::parse(&value).unwrap().notifies);
        let plain = Ballot::of(b"1 try=x");
        assert_eq!((plain.token(), plain), (None, Ballot::Foreign(b"1 try=x".to_vec())));
    }
}
