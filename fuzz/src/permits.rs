//! A semaphore's item: the holders of its permits, which any client of the server can write. The
//! input is the second that the server's clock shows, how many permits are wanted, and the item's
//! value.

use super::input::Input;
use memlock_core::Token;
use memlock_core::fuzzing::{SemaphoreRecord, percent_encode};

pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let (now, wanted) = (input.number(), input.byte().into());
    let value = input.0;
    let Some(record) = SemaphoreRecord::parse(value) else { return };
    assert_eq!(
        SemaphoreRecord::parse(&record.encode()).as_ref(),
        Some(&record),
        "it is read as it was written"
    );
    counting(&record, now);
    coming_free(&record, wanted, now);
    let newcomer = Token::from_bits(u128::from(now) << 64 | u128::from(wanted));
    if record.holders().iter().all(|holder| holder.token != newcomer) {
        taking(&record, newcomer, wanted, now, value);
    }
    leaving(&record, now);
}

/// Never more than there are, and what is held of them is not available.
fn counting(record: &SemaphoreRecord, now: u64) {
    let held = held(record, now);
    let available = u64::from(record.available(now));
    assert_eq!(available, u64::from(record.permits()).saturating_sub(held));
    // Permits come back as time passes, and do not go.
    assert!(record.available(now.saturating_add(1)) >= record.available(now));
    assert_eq!(record.available(u64::MAX), record.permits(), "nobody holds any for ever");
}

/// How many are held. A lease whose end has come holds nothing.
fn held(record: &SemaphoreRecord, now: u64) -> u64 {
    record
        .holders()
        .iter()
        .filter(|holder| holder.until > now)
        .map(|holder| u64::from(holder.permits))
        .sum()
}

/// A waiter sleeps until its permits come free by themselves, and neither longer nor in vain.
fn coming_free(record: &SemaphoreRecord, wanted: u32, now: u64) {
    let Some(at) = record.available_at(wanted, now) else {
        let there_are = record.permits() < wanted || record.available(now) >= wanted;
        assert!(there_are, "who asks for no more than there are gets them some day");
        return;
    };
    assert!(at > now);
    assert!(record.available(at) >= wanted);
    if record.available(now) < wanted {
        assert!(record.available(at - 1) < wanted);
    }
}

/// One more holder takes what it wants from what is available, and from no other holder.
fn taking(before: &SemaphoreRecord, newcomer: Token, wanted: u32, now: u64, value: &[u8]) {
    let mut after = before.clone();
    let until = now.saturating_add(30);
    let host = percent_encode(&value[..value.len().min(40)]);
    after.take(now, newcomer, wanted, until, &host);
    after.touch(now);
    let live = |record: &SemaphoreRecord| {
        let holders = record.holders().into_iter();
        holders.filter(|holder| holder.until > now && holder.token != newcomer).collect::<Vec<_>>()
    };
    assert_eq!(live(&after), live(before), "all others keep what they have");
    let holders = after.holders();
    let ours: Vec<_> = holders.iter().filter(|holder| holder.token == newcomer).collect();
    assert_eq!((ours.len(), ours[0].permits, ours[0].until), (1, wanted, until));
    let ((expires, life, serial), (_, _, times)) = (after.life(), before.life());
    assert_eq!(serial, times.wrapping_add(1));
    assert!(
        expires >= now.saturating_add(life) && holders.iter().all(|holder| holder.until <= expires)
    );
    assert_eq!((after.token(), after.permits()), (before.token(), before.permits()));
    if let Some((token, priority, until)) = after.reservation() {
        assert_eq!(before.reservation(), after.reservation());
        assert!(
            token != newcomer && until > now && after.is_reserved_from(now, newcomer, priority)
        );
    }
    written_and_read(&after);
}

/// What one holder renews or gives back is its own, and renewing takes nothing from it.
fn leaving(before: &SemaphoreRecord, now: u64) {
    let Some(first) = before.holders().into_iter().next() else { return };
    let others = |record: &SemaphoreRecord| {
        let holders = record.holders().into_iter();
        holders.filter(|holder| holder.token != first.token).collect::<Vec<_>>()
    };
    let mut renewed = before.clone();
    renewed.renew(first.token, now, true);
    let until = |record: &SemaphoreRecord| {
        record.holders().iter().map(|holder| holder.until).collect::<Vec<_>>()
    };
    assert!(until(&renewed).iter().zip(until(before)).all(|(after, before)| *after >= before));
    let mut without = before.clone();
    without.give_back(first.token);
    assert!(without.holders().iter().all(|holder| holder.token != first.token));
    for after in [renewed, without] {
        assert_eq!(others(&after), others(before), "all others keep what they have");
        assert!(after.available(now) >= before.available(now));
        written_and_read(&after);
    }
}

fn written_and_read(record: &SemaphoreRecord) {
    assert_eq!(
        SemaphoreRecord::parse(&record.encode()).as_ref(),
        Some(record),
        "what is written can be read"
    );
}
