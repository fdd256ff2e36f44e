//! What distinct lists owe.

use std::collections::HashMap;
use std::time::Duration;

use memlock_core::Answer;

use super::facts::Facts;
use super::verdict::Verdict;
use crate::history::{Call, Op, Span};

/// A session between two losses of the server: its name, and how many losses came before.
type Session<'a> = (&'a str, usize);

/// Calls that were under way when the server lost its memory belong to no session, and prove
/// nothing.
fn session<'a>(call: &'a Call, facts: &Facts) -> Option<Session<'a>> {
    let whole = !facts.lost_within(call.span());
    let before = facts.losses.iter().filter(|loss| loss.to < call.began).count();
    whole.then_some((call.name.as_str(), before))
}

pub(super) fn check(calls: &[&Call], facts: &Facts, verdict: &mut Verdict) {
    let mut keys: HashMap<(&str, u64), Vec<&Call>> = HashMap::new();
    let mut ids: HashMap<(Session<'_>, u64), (u64, &Call)> = HashMap::new();
    for call in calls {
        let Op::Insert { key } = call.op else { continue };
        keys.entry((&call.name, key)).or_default().push(call);
        let (Some(session), Some(done)) = (session(call, facts), definite(call)) else { continue };
        let (other, before) = ids.entry((session, done)).or_insert((key, call));
        if *other != key {
            verdict.breach(format_args!("two keys have one id: {call:?} and {before:?}"));
        }
    }
    for inserts in keys.values() {
        one_id_and_one_first(inserts, facts, verdict);
    }
    sessions(calls, facts, verdict);
}

/// The id that an insert returned.
fn definite(call: &Call) -> Option<u64> {
    let done = call.done.as_ref()?;
    matches!(done.answer, Answer::Ok | Answer::Duplicate).then_some(done.first)
}

/// All inserts of one key under one name of a session.
fn one_id_and_one_first(inserts: &[&Call], facts: &Facts, verdict: &mut Verdict) {
    let mut by_session: HashMap<Session<'_>, Vec<(u64, &Call)>> = HashMap::new();
    for call in inserts {
        if let (Some(session), Some(id)) = (session(call, facts), definite(call)) {
            by_session.entry(session).or_default().push((id, call));
        }
    }
    let in_doubt = inserts.iter().any(|call| {
        let settled = matches!(
            call.answer(),
            Some(Answer::Ok | Answer::Duplicate | Answer::NotFound | Answer::Unreachable)
        );
        !settled || call.began < facts.since || session(call, facts).is_none()
    });
    for told in by_session.into_values() {
        if let Some(other) = told.iter().find(|(id, _)| *id != told[0].0 || *id == 0) {
            verdict.breach(format_args!("a key has two ids: {:?} and {other:?}", told[0]));
        }
        let firsts = told.iter().filter(|(_, call)| call.answer() == Some(Answer::Ok)).count();
        match firsts {
            0 if !in_doubt => {
                verdict
                    .violations
                    .push(format!("a key, and nobody was told to be first: {told:?}"));
            }
            0 | 1 => {}
            _ => verdict.breach(format_args!("{firsts} were told to be first: {told:?}")),
        }
    }
}

fn sessions(calls: &[&Call], facts: &Facts, verdict: &mut Verdict) {
    let mut created: HashMap<Session<'_>, Vec<&Call>> = HashMap::new();
    let mut first_asked: HashMap<&str, Duration> = HashMap::new();
    let mut joined: Option<&Call> = None;
    for call in calls {
        match (&call.op, call.answer()) {
            (Op::SetUp, said) => {
                joined = Some(*call).filter(|_| matches!(said, Some(Answer::Ok | Answer::Exists)));
                let first = first_asked.entry(&call.name).or_insert(call.began);
                *first = call.began.min(*first);
                if let (Some(Answer::Ok), Some(session)) = (said, session(call, facts)) {
                    created.entry(session).or_default().push(call);
                }
            }
            (Op::Insert { .. }, Some(Answer::NotFound)) => {
                let own =
                    joined.filter(|joined| joined.who == call.who && joined.name == call.name);
                let since = own.map(|joined| Span { from: joined.began, to: call.ended() });
                if since.is_some_and(|since| !facts.lost_within(since)) {
                    verdict.violations.push(format!("the session was gone: {call:?}"));
                }
            }
            _ => {}
        }
    }
    for call in
        calls.iter().filter(|call| call.op == Op::SetUp && call.answer() == Some(Answer::Exists))
    {
        if first_asked.get(call.name.as_str()).is_none_or(|first| *first >= call.began) {
            let others =
                calls.iter().filter(|other| other.op == Op::SetUp && other.name == call.name);
            let alone = others.filter(|other| other.began <= call.ended()).count() < 2;
            if alone && call.began >= facts.since {
                verdict
                    .violations
                    .push(format!("a session was there that nobody had set up: {call:?}"));
            }
        }
    }
    for calls in created.into_values().filter(|calls| calls.len() > 1) {
        verdict.breach(format_args!("a session was set up twice: {calls:?}"));
    }
}
