use std::sync::Arc;
use std::time::Duration;

use super::insertion::*;
use super::list::*;
use crate::client::Client;
use crate::clock::Moment;
use crate::clock::{Clock, SystemClock};
use crate::error::ErrorKind;
use crate::lease::{DRIFT, MAX_LEASE};
use crate::owner::Token;
use crate::store::Epoch;
use crate::store::memory::Memory;
use crate::store::{Item, Op, Reply, Version};
use proptest::prelude::*;

/// The counter of ids was tampered with.
#[test]
fn a_counter_at_its_end_gives_its_last_id_and_a_walk_that_ends() {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let client = Client::with_store(Arc::new(Memory::new(Arc::clone(&clock))), clock);
    let mut list = client.distinct_list("s").unwrap();
    let _ = list.set_up(Duration::from_secs(60)).unwrap();
    let counter = list.counter(&list.joined.clone().unwrap());
    let count = Op::Increment { key: &counter, by: u64::MAX - 1, initial: None };
    assert_eq!(list.target.one(count).unwrap(), Reply::Number(u64::MAX - 1));
    assert_eq!(list.insert("k").unwrap(), Some(Insertion::First(u64::MAX)));
    // The walk does not look for all ids before it reports the error.
    let mut walk = list.entries().unwrap().unwrap();
    assert_eq!(walk.next().unwrap().unwrap_err().kind(), ErrorKind::Protocol);
    assert_eq!(walk.next(), None);
    let mut walk = list.entries().unwrap().unwrap();
    assert!(list.tear_down().unwrap());
    assert_eq!(walk.next().unwrap().unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(walk.next(), None);
}

fn item(value: Vec<u8>, remaining: Option<u64>) -> Item {
    let version = Version::new(Epoch::new(1, 1), 1);
    Item { value, version, remaining: remaining.map(Duration::from_secs), fence: 0 }
}

proptest! {
    #[test]
    fn what_is_written_for_a_key_is_read_back(id: Option<u64>, bits: u128) {
        let item = KeyItem { id, token: Token::from_bits(bits) };
        prop_assert_eq!(KeyItem::parse(item.to_string().as_bytes()), Some(item));
    }

    #[test]
    fn any_bytes_can_be_read_as_any_item(value: Vec<u8>, tail in "[ -~]{0,60}", remaining: Option<u64>) {
        for value in [value, tail.clone().into_bytes(), format!("{SESSION_FORMAT} {tail}").into_bytes()] {
            let _ = KeyItem::parse(&value);
            let _ = parse_number(&value);
            let _ = Generation::parse(&item(value, remaining), Moment::from_boot(Duration::MAX));
        }
    }

    /// The items have to exist for as long as the session, but not forever.
    #[test]
    fn a_session_ends_no_sooner_than_the_server_says(bits: u128, remaining: Option<u64>) {
        let now = Moment::from_boot(Duration::from_secs(1000));
        let value = format!("{SESSION_FORMAT} {}", Token::from_bits(bits)).into_bytes();
        let found = Generation::parse(&item(value, remaining), now).unwrap();
        let longest = 2 * MAX_LEASE.as_secs();
        let said = remaining.unwrap_or(MAX_LEASE.as_secs()).min(longest);
        let left = found.ends.since(now).as_secs();
        prop_assert_eq!(found.token, Token::from_bits(bits));
        prop_assert!((said..=said + longest / DRIFT + 1).contains(&left), "{} and {}", said, left);
    }
}
