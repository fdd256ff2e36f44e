//! One batch: how the record changes, and the outcome of each operation once the record is written.
//!
//! The batch is one write, and therefore one moment. Within it, extensions come first, then
//! releases, then acquisitions: those of woken waiters before all others, then by priority. **An
//! acquisition takes part only if the record that was read had capacity for it**: new callers that
//! would not have got permits before get none of those that the same batch releases, so a process
//! that releases and acquires in one write overtakes no more waiters than two processes would. The
//! acquisitions of waiters to which permits are handed off may take what the batch releases.

use super::member::{Member, Planned, Writer};
use super::operation::{
    Acquisition, Extend, Kind, Operation, OperationOutcome, Release, ServerClock,
};
use super::reclaim;
use super::record::{Holding, Record};
use super::snapshot::{Confirmation, Snapshot};
use crate::clock::Moment;
use crate::mutation::{self, Mutation};
use crate::owner::Token;

/// Changes the record in `snapshot` by the operations of the batch, and plans the outcome of each.
/// False if one of them cannot be performed on this record, and the record is only remembered: it
/// then has to be read.
pub(super) fn plan(
    snapshot: &mut Snapshot,
    batch: &mut [Member<'_>],
    writer: &Writer<'_>,
    remembered: bool,
) -> bool {
    let (now, confirmed) = (snapshot.now, snapshot.confirmation());
    let Confirmation { of, life, .. } = confirmed;
    if !remembered {
        reclaim::put_back(snapshot, batch, writer);
    }
    let found = find(&snapshot.record, batch);
    let misses = |(at, member): (usize, &Member<'_>)| misses(&member.operation, found.of(at));
    if remembered && batch.iter().enumerate().any(misses) {
        return false;
    }
    let mut is_refused = false;
    let free = snapshot.available(writer.now);
    let recovers = snapshot.recovers(writer.now);
    let has_room = snapshot.record.has_room(now);
    for (at, member) in batch.iter_mut().enumerate() {
        let is_waiter = member.is_waiter();
        let Member { operation, planned, .. } = member;
        let found = found.of(at);
        let in_doubt = operation.in_doubt;
        let line = found.first().and_then(|&(_, line)| snapshot.record.holdings.get(line));
        *planned = match (&mut operation.kind, line) {
            (Kind::Acquisition(wanted), Some(&Holding { permits, .. })) => {
                let forgets = mutation::has(Mutation::CountFromTheLastTry);
                let counted_from =
                    in_doubt.filter(|_| !forgets).map_or(snapshot.sent, |doubt| doubt.since);
                let clock = match in_doubt {
                    _ if snapshot.is_slow() => ServerClock::MayStand,
                    Some(doubt) if !doubt.slow => ServerClock::Runs,
                    _ => ServerClock::KeepsUntil(snapshot.keeps_until(wanted.token)),
                };
                Planned::Known(OperationOutcome::Granted {
                    confirmed,
                    permits,
                    counted_from,
                    clock,
                })
            }
            (Kind::Acquisition(wanted), None) => {
                let record = &snapshot.record;
                let outcome = match is_waiter {
                    // It may take what the batch releases.
                    true => unfit_outcome(wanted, record.permits),
                    false => outcome_at_once(wanted, record, now, free, has_room),
                };
                outcome.map_or(Planned::Refuses, Planned::Known)
            }
            (Kind::Release(_), Some(&Holding { permits, .. })) => Planned::Releases(permits),
            (Kind::Release(_), None) if mutation::has(Mutation::ReleaseAnyPermit) => {
                Planned::Releases(0)
            }
            (Kind::Release(Release { reclaimable: Some(held), .. }), None)
                if recovers && held.fits(life, writer.now) =>
            {
                Planned::Known(OperationOutcome::Released { wakes: None })
            }
            (Kind::Release(_), None) => {
                Planned::Known(OperationOutcome::Gone { instead: Some((of, free)) })
            }
            (Kind::Extend(extend), _) => extends(extend, snapshot, found, writer.now),
        };
        match planned {
            Planned::Known(OperationOutcome::NoRoom { .. } | OperationOutcome::Unfit { .. })
                if remembered =>
            {
                return false;
            }
            Planned::Known(OperationOutcome::NoRoom { .. }) => {
                // While the record has the version that a lost request was to replace, that request
                // may still succeed.
                operation.in_doubt =
                    operation.in_doubt.filter(|doubt| doubt.version == snapshot.version);
                is_refused = true;
            }
            _ => {}
        }
    }
    if is_refused {
        set_refusals(snapshot, batch, writer.now);
    }
    give_back(&mut snapshot.record, batch);
    take(snapshot, batch, writer);
    true
}

/// How many permits the releases of the batch are for.
pub(super) fn to_release(record: &Record, batch: &[Member<'_>]) -> u32 {
    let found = find(record, batch);
    let releases = batch.iter().enumerate().filter(|(_, member)| member.releases());
    let lines = releases.flat_map(|(at, _)| found.of(at));
    let released = lines.filter_map(|&(_, line)| record.holdings.get(line));
    released.map(|holding| holding.permits).fold(0, u32::saturating_add)
}

/// Adds the semaphore's state to the outcome of refused acquisitions.
fn set_refusals(snapshot: &Snapshot, batch: &mut [Member<'_>], at: Moment) {
    let why = snapshot.refusal(at);
    for member in batch {
        if let Planned::Known(OperationOutcome::NoRoom { refusal }) = &mut member.planned {
            *refusal = Some(why.clone());
        }
    }
}

/// The lines of the record that belong to the tokens of each operation.
struct Found {
    /// Pairs of an operation and a line, sorted.
    lines: Vec<(usize, usize)>,
}

impl Found {
    fn of(&self, member: usize) -> &[(usize, usize)] {
        let first = self.lines.partition_point(|(at, _)| *at < member);
        let end = self.lines.partition_point(|(at, _)| *at <= member);
        self.lines.get(first..end).unwrap_or_default()
    }
}

fn find(record: &Record, batch: &[Member<'_>]) -> Found {
    let mut tokens: Vec<(Token, usize)> = Vec::with_capacity(batch.len());
    for (at, member) in batch.iter().enumerate() {
        match &member.operation.kind {
            Kind::Acquisition(Acquisition { token, .. }) | Kind::Release(Release { token, .. }) => {
                tokens.push((*token, at));
            }
            Kind::Extend(extend) => tokens.extend(extend.renewing.iter().map(|it| (it.token, at))),
        }
    }
    tokens.sort_unstable();
    let mut lines = Vec::new();
    for (line, holding) in record.holdings.iter().enumerate() {
        let first = tokens.partition_point(|(token, _)| *token < holding.token);
        let same = tokens.iter().skip(first).take_while(|(token, _)| *token == holding.token);
        lines.extend(same.map(|&(_, at)| (at, line)));
    }
    lines.sort_unstable();
    Found { lines }
}

/// Whether the record lacks a line that the operation needs.
fn misses(operation: &Operation, found: &[(usize, usize)]) -> bool {
    match &operation.kind {
        Kind::Acquisition(_) => false,
        Kind::Release(_) => found.is_empty(),
        Kind::Extend(extend) => found.len() < extend.renewing.len(),
    }
}

/// The outcome of an acquisition by the record that was read; `None` if it may take its permits.
fn outcome_at_once(
    wanted: &Acquisition,
    record: &Record,
    now: u64,
    free: u32,
    has_room: bool,
) -> Option<OperationOutcome> {
    let number = record.permits;
    if let Some(unfit) = unfit_outcome(wanted, number) {
        return Some(unfit);
    }
    let fits = has_room && fits(wanted, record, now, free);
    if fits { None } else { Some(OperationOutcome::NoRoom { refusal: None }) }
}

/// The outcome of an acquisition whose semaphore does not have the right number of permits.
fn unfit_outcome(wanted: &Acquisition, number: u32) -> Option<OperationOutcome> {
    let Acquisition { expected, permits, .. } = *wanted;
    let is_another = expected.is_some_and(|expected| expected != number);
    let is_first = expected.is_some();
    (is_another || permits > number).then_some(OperationOutcome::Unfit { number, is_first })
}

/// Whether an acquisition may take its permits if `free` permits are available.
pub(super) fn fits(wanted: &Acquisition, record: &Record, now: u64, free: u32) -> bool {
    let overtakes = !wanted.called && record.is_reserved_from(now, wanted.token, wanted.priority);
    let own = wanted.set_up_with.filter(|_| mutation::has(Mutation::CountByOwnNumber));
    let free = free + own.map_or(0, |own| own.saturating_sub(record.permits));
    free >= wanted.permits && (!overtakes || mutation::has(Mutation::OvertakeGatherers))
}

/// Moves the ends of the permits that are in the record, and notes those that are not.
fn extends(
    extend: &mut Extend,
    snapshot: &mut Snapshot,
    found: &[(usize, usize)],
    now: Moment,
) -> Planned {
    let mut all = std::mem::take(&mut extend.renewing);
    all.retain(|it| extend.includes(it, now));
    extend.renewing = all;
    let Extend { renewing, wanted, gone, keeps } = extend;
    let is_there = |record: &Record, token: Token| {
        found.iter().any(|&(_, line)| {
            record.holdings.get(line).is_some_and(|holding| holding.token == token)
        })
    };
    gone.extend(
        renewing.extract_if(.., |it| !is_there(&snapshot.record, it.token)).map(|it| it.token),
    );
    let mut since = now;
    let mut untils = Vec::with_capacity(renewing.len());
    for it in renewing.iter_mut() {
        let (until, counted_from) = snapshot.lease(it.lease, now);
        (it.deadline, since) = (it.lease.deadline(counted_from), since.min(counted_from));
        untils.push((it.token, until));
    }
    let keeps = *keeps || wanted.is_some() && snapshot.is_slow();
    for &(_, line) in found {
        if let Some(holding) = snapshot.record.holdings.get_mut(line)
            && let Some((_, until)) = untils.iter().find(|(token, _)| *token == holding.token)
        {
            // A renewal by a clock that may be stopped does not move the end earlier, because the
            // holder relies on it.
            holding.until = if keeps { holding.until.max(*until) } else { *until };
        }
    }
    if renewing.is_empty() {
        Planned::Known(OperationOutcome::Extended { asks: false })
    } else {
        Planned::Extends(since)
    }
}

/// Removes the lines of released permits.
fn give_back(record: &mut Record, batch: &[Member<'_>]) {
    let released = |member: &Member<'_>| match (&member.operation.kind, &member.planned) {
        (Kind::Release(Release { token, .. }), Planned::Releases(_)) => Some(*token),
        _ => None,
    };
    let mut tokens: Vec<Token> = batch.iter().filter_map(released).collect();
    if tokens.is_empty() {
        return;
    }
    if mutation::has(Mutation::ReleaseAnyPermit)
        && !record.holdings.iter().any(|holding| tokens.contains(&holding.token))
    {
        tokens.extend(record.holdings.first().map(|holding| holding.token));
    }
    tokens.sort_unstable();
    record.holdings.retain(|holding| tokens.binary_search(&holding.token).is_err());
}

/// Grants permits to the acquisitions that may take them, while permits are available.
fn take(snapshot: &mut Snapshot, batch: &mut [Member<'_>], writer: &Writer<'_>) {
    let mut order: Vec<(&Acquisition, &mut Planned)> = Vec::new();
    for Member { operation, planned, .. } in batch {
        if let (Kind::Acquisition(wanted), Planned::Refuses) = (&operation.kind, &planned) {
            order.push((wanted, planned));
        }
    }
    if order.is_empty() {
        return;
    }
    order.sort_by_key(|(wanted, _)| std::cmp::Reverse((wanted.called, wanted.priority)));
    let now = snapshot.now;
    let mut free = snapshot.available(writer.now);
    for (wanted, planned) in order {
        if !snapshot.record.has_room(now) || !fits(wanted, &snapshot.record, now, free) {
            if mutation::has(Mutation::GrantToAll) {
                *planned = Planned::Grants(snapshot.sent);
            }
            continue;
        }
        let (until, counted_from) = snapshot.lease(wanted.lease, writer.now);
        let Writer { host, pid, unix_seconds, .. } = *writer;
        let holding = Holding::new(wanted.token, wanted.permits, until, host, pid, unix_seconds);
        snapshot.record.take(now, holding);
        free = free.saturating_sub(wanted.permits);
        *planned = Planned::Grants(counted_from);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::lease::Lease;
    use crate::primitives::semaphore::member::Origin;
    use crate::semaphore::operation::{Doubt, Renewing};
    use crate::store::memcached::GUARANTEES;
    use crate::store::{Epoch, Version};
    use proptest::collection::vec;
    use proptest::prelude::*;

    const NOW: u64 = 100;

    fn moment(seconds: u64) -> Moment {
        Moment::from_boot(Duration::from_secs(seconds))
    }

    fn lease() -> Lease {
        Lease::new(Duration::from_secs(30)).unwrap()
    }

    fn snapshot(permits: u32, holders: &[(u128, u32)]) -> Snapshot {
        let mut record = Record::new(Token::from_bits(1), permits, 60, 1000);
        for &(token, permits) in holders {
            record.holdings.push(Holding::new(
                Token::from_bits(token),
                permits,
                NOW + 9,
                "web",
                1,
                2,
            ));
        }
        let version = Version::new(Epoch::new(1, 1), 1);
        Snapshot {
            record,
            version,
            now: NOW,
            sent: moment(50),
            took: Duration::ZERO,
            first: None,
            guarantees: GUARANTEES,
            recovers_until: moment(0),
        }
    }

    fn acquires(token: u128, permits: u32, priority: i64, called: bool) -> Member<'static> {
        let token = Token::from_bits(token);
        let (expected, set_up_with) = (None, None);
        let acquire =
            Acquisition { token, permits, priority, called, lease: lease(), expected, set_up_with };
        member(Kind::Acquisition(acquire))
    }

    fn releases(token: u128) -> Member<'static> {
        member(Kind::Release(Release {
            token: Token::from_bits(token),
            entry_ids: Vec::new(),
            reclaimable: None,
        }))
    }

    fn member(kind: Kind) -> Member<'static> {
        Member::of(Operation::new(kind, None), Origin::Own)
    }

    fn doubt(slow: bool, cas: u64) -> Doubt {
        let version = Version::new(Epoch::new(1, 1), cas);
        Doubt { since: moment(49), until: moment(49), slow, version }
    }

    fn planned(snapshot: &mut Snapshot, batch: &mut [Member<'_>]) -> Vec<&'static str> {
        let writer = Writer { host: "web", pid: 1, unix_seconds: 2, now: moment(50) };
        assert!(plan(snapshot, batch, &writer, false));
        let name = |member: &Member<'_>| match member.planned {
            Planned::Known(OperationOutcome::NoRoom { .. }) => "no room",
            Planned::Known(OperationOutcome::Gone { .. }) => "gone",
            Planned::Known(OperationOutcome::Extended { .. }) => "nothing",
            Planned::Known(_) => "known",
            Planned::Grants(_) => "granted",
            Planned::Refuses => "refused",
            Planned::Releases(_) => "released",
            Planned::Extends(_) => "extended",
        };
        batch.iter().map(name).collect()
    }

    #[test]
    fn what_a_batch_gives_back_is_not_for_newcomers_who_found_none() {
        let mut batch = [acquires(10, 1, 0, false), releases(2)];
        let mut full = snapshot(1, &[(2, 1)]);
        assert_eq!(planned(&mut full, &mut batch), ["no room", "released"]);
        assert!(full.record.holdings.is_empty());
    }

    #[test]
    fn those_that_were_woken_come_first_and_then_higher_priority() {
        let mut batch = [
            acquires(10, 1, 0, false),
            acquires(11, 1, 5, false),
            acquires(12, 1, -1, true),
            acquires(13, 2, 9, false),
        ];
        let mut three = snapshot(3, &[]);
        let expected = ["refused", "refused", "granted", "granted"];
        assert_eq!(planned(&mut three, &mut batch), expected);
    }

    #[test]
    fn what_was_reckoned_from_a_clock_that_stood_still_lasts_as_long_as_the_server_says() {
        // In the last case, it is not known which request was granted, so the deadline is capped.
        for (doubt, is_kept) in
            [(Some(doubt(false, 1)), false), (Some(doubt(true, 1)), true), (None, true)]
        {
            let mut batch = [acquires(2, 1, 0, false)];
            batch[0].operation.in_doubt = doubt;
            let writer = Writer { host: "web", pid: 1, unix_seconds: 2, now: moment(50) };
            assert!(plan(&mut snapshot(3, &[(2, 1)]), &mut batch, &writer, false));
            let Planned::Known(OperationOutcome::Granted { counted_from, clock, .. }) =
                &batch[0].planned
            else {
                panic!("its line is there")
            };
            assert_eq!(*counted_from, doubt.map_or(moment(50), |doubt| doubt.since));
            let kept = moment(50) + (Duration::from_secs(9) - GUARANTEES.clock_error);
            match clock {
                ServerClock::Runs => assert!(!is_kept),
                ServerClock::KeepsUntil(until) => assert!(is_kept && *until == kept),
                ServerClock::MayStand => panic!("it was read at once"),
            }
        }
    }

    #[test]
    fn a_lost_request_may_succeed_as_long_as_the_record_is_the_one_it_was_for() {
        for (cas, is_over) in [(1, false), (0, true)] {
            let mut batch = [acquires(10, 1, 0, false)];
            batch[0].operation.in_doubt = Some(doubt(false, cas));
            assert_eq!(planned(&mut snapshot(1, &[(2, 1)]), &mut batch), ["no room"]);
            assert_eq!(batch[0].operation.in_doubt.is_none(), is_over);
        }
    }

    #[test]
    fn only_what_is_there_is_extended_and_released() {
        let token = Token::from_bits;
        let of = |it| Renewing {
            token: token(it),
            lease: lease(),
            old_deadline: moment(60),
            deadline: moment(60),
            reclaimable: None,
        };
        let late = Renewing { old_deadline: moment(49), ..of(4) };
        let wanted = Some(std::sync::Arc::new(move |it| it != token(5)) as _);
        let renewing = vec![of(2), of(3), late, of(5)];
        let extend = Extend { renewing, wanted, gone: Vec::new(), keeps: false };
        let mut batch = [member(Kind::Extend(extend)), releases(7)];
        let mut record = snapshot(9, &[(2, 1), (4, 1), (5, 1)]);
        assert_eq!(planned(&mut record, &mut batch), ["extended", "gone"]);
        let Kind::Extend(extend) = &batch[0].operation.kind else { panic!("it is") };
        assert_eq!(extend.renewing.iter().map(|it| it.token).collect::<Vec<_>>(), [token(2)]);
        assert_eq!(extend.gone, [token(3)]);
        let untils: Vec<u64> = record.record.holdings.iter().map(|holding| holding.until).collect();
        assert_eq!(untils, [NOW + 32, NOW + 9, NOW + 9]);
    }

    proptest! {
        #[test]
        fn a_batch_never_gives_more_permits_than_there_are(
            permits in 1_u32..9,
            held in vec(1_u32..4, 0..6),
            wanted in vec((1_u32..4, any::<bool>(), -1_i64..2), 0..9),
            gone in vec(2_u128..9, 0..5),
        ) {
            let mut left = permits;
            let held: Vec<(u128, u32)> = (2..).zip(held).filter(|&(_, wanted)| {
                let fits = wanted <= left;
                left -= if fits { wanted } else { 0 };
                fits
            }).collect();
            let mut record = snapshot(permits, &held);
            let acquire =
                |(at, (wanted, called, priority))| acquires(100 + at, wanted, priority, called);
            let mut batch: Vec<Member<'_>> = (0_u128..).zip(wanted).map(acquire).collect();
            let mut gone = gone;
            gone.sort_unstable();
            gone.dedup();
            batch.extend(gone.iter().map(|&token| releases(token)));
            let planned = planned(&mut record, &mut batch);
            let out: u32 = record.record.holdings.iter().map(|holding| holding.permits).sum();
            prop_assert!(out <= permits);
            for (member, planned) in batch.iter().zip(planned) {
                let (Kind::Acquisition(Acquisition { token, .. })
                | Kind::Release(Release { token, .. })) = &member.operation.kind
                else {
                    panic!("nothing was extended")
                };
                prop_assert_eq!(record.record.held_by(*token).is_some(), planned == "granted");
            }
            for &(token, _) in held.iter().filter(|(token, _)| !gone.contains(token)) {
                prop_assert!(record.record.held_by(Token::from_bits(token)).is_some());
            }
        }
    }
}
