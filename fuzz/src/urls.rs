//! URLs: what a user, or an environment variable, gives.

use std::net::SocketAddr;
use std::time::Duration;

use memlock_core::fuzzing::{notify_setting, percent_encode};
use memlock_core::name::Keyspace;
use memlock_core::notify::WakeAddress;
use memlock_core::wait::entries::{Request, line, waiters};
use memlock_core::wait_id::WaitId;
use memlock_core::{Client, ErrorKind};

pub fn run(data: &[u8]) {
    // What is no text any more, and all behind it, is left out.
    let text = data.utf8_chunks().next().map_or("", |chunk| chunk.valid());
    as_an_url(text);
    as_a_parameter(text);
    as_a_notify_address(text);
}

/// An URL is read, or refused as a bad setting with a whole sentence.
fn as_an_url(text: &str) {
    match Client::connect(text) {
        Ok(client) => {
            assert!(text.contains("://") && !text.contains(['#', ' ', '\n', '\0']));
            assert!(Client::connect(&format!("{text}{}unknown=1", separator(text))).is_err());
            assert!(format!("{client:?}").contains("store"));
            if text.to_ascii_lowercase().starts_with("memory://") {
                let mutex = client.mutex("x", Duration::from_secs(60)).expect("a plain name");
                let mut lock = mutex.try_lock().expect("a store in memory").expect("nobody has it");
                let _ = lock.unlock().expect("a store in memory");
            }
        }
        Err(error) => {
            let said = error.to_string();
            assert_eq!(error.kind(), ErrorKind::Config, "{said}");
            assert!(said.ends_with(['.', '…']), "{said}");
        }
    }
}

fn separator(url: &str) -> char {
    if url.contains('?') { '&' } else { '?' }
}

/// Whatever a parameter's value is, it can be written with %XX, and means the same.
fn as_a_parameter(value: &str) {
    let written = percent_encode(value.as_bytes());
    let written = written.replace('&', "%26").replace('#', "%23").replace('@', "%40");
    let accepts =
        |name: &str| Client::connect(&format!("memory://parameter?{name}={written}")).is_ok();
    assert_eq!(accepts("prefix"), Keyspace::new(value).is_ok());
    assert_eq!(accepts("bell"), notify_setting(value).is_ok());
    assert_eq!(accepts("outage"), is_duration(value), "{value:?}");
    assert!(!accepts("unheard_of"));
}

/// `250ms`, `1.5s` or seconds without a unit, from 1 ms to 3600 s, with at most 9 digits on each side of
/// the point. What is below a nanosecond does not count.
fn is_duration(text: &str) -> bool {
    let (number, nanoseconds) = match text.strip_suffix("ms") {
        Some(number) => (number, 1_000_000),
        None => (text.strip_suffix('s').unwrap_or(text), 1_000_000_000),
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits = format!("{whole}{fraction:0<9}");
    let plain =
        whole.len() <= 9 && fraction.len() <= 9 && !(whole.is_empty() && fraction.is_empty());
    plain
        && digits.bytes().all(|byte| byte.is_ascii_digit())
        && digits.parse::<u128>().is_ok_and(|billionths| {
            (1_000_000..=3_600_000_000_000).contains(&(billionths * nanoseconds / 1_000_000_000))
        })
}

/// A waiter at an address that the setting accepts can be read by the process that is to wake it.
fn as_a_notify_address(text: &str) {
    let Ok(Some((address, (first, last)))) = notify_setting(text) else { return };
    assert!(first <= last && (first > 0 || last == 0));
    let address = WakeAddress::udp(SocketAddr::new(address, last.max(1)));
    let line = line(address, WaitId(7), Request::default());
    let read: Vec<_> = waiters(&line).map(|entry| (entry.address, entry.id)).collect();
    assert!(address.is_some());
    assert_eq!(read, [(address, WaitId(7))], "{text:?}");
}
