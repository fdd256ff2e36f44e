//! The reader and the writer agree, and what is no history is refused.

use std::time::Duration;

use memlock_core::Answer;

use super::*;

fn reader(file: &Forged) -> Reader {
    Reader::new(3, file.0.clone())
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

#[test]
fn what_is_written_is_read() {
    let file = Forged::of("");
    let ops = [
        Op::Lock { lease: ms(1000), wait: Some(ms(50)) },
        Op::Lock { lease: ms(1001), wait: Some(Duration::ZERO) },
        Op::Lock { lease: ms(1002), wait: None },
        Op::Extend { lease: ms(1003) },
        Op::Unlock,
        Op::Acquire { lease: ms(1004), wait: Some(ms(60)), permits: 2, priority: -1 },
        Op::Acquire { lease: ms(1005), wait: None, permits: 1, priority: 7 },
        Op::Prolong { lease: ms(1006) },
        Op::Release,
        Op::SetUp,
        Op::Insert { key: 8 },
    ];
    let first = Writer::open(&file.0).unwrap();
    let other = first.of_thread(2);
    other.enter().unwrap();
    let mut began = Vec::new();
    for (number, op) in (0..).zip(&ops) {
        let at = other.call(op, "name").unwrap();
        first.of_thread(2).cancel(at).unwrap();
        // Not this one.
        first.of_thread(2).cancel(at + ms(1)).unwrap();
        began.push(at);
        match op {
            Op::Unlock => other.failed(Answer::Unreachable, "It is\ngone.", ms(9)).unwrap(),
            _ => other.done(Answer::Lost, number, ms(9)).unwrap(),
        }
    }
    other.leave().unwrap();
    assert!(first.call(&Op::Inside, "").is_err());
    let mut reader = reader(&file);
    let mut calls = reader.read(Duration::MAX).unwrap();
    assert!(reader.open().next().is_none() && !reader.is_cut_off());
    let inside = calls.pop().unwrap();
    assert!(inside.op == Op::Inside && inside.began <= began[0], "{inside:?}");
    assert_eq!(calls.len(), ops.len());
    for (((call, op), at), number) in calls.iter().zip(&ops).zip(began).zip(0..) {
        assert_eq!((&call.op, call.name.as_str(), call.began), (op, "name", at));
        assert_eq!(call.who, Who { process: 3, thread: 2 });
        assert!(call.cancelled.is_some_and(|cancelled| cancelled >= at), "{call:?}");
        let done = call.done.as_ref().unwrap();
        assert!(done.at >= at && done.second == 9_000_000, "{call:?}");
        match op {
            Op::Unlock => {
                let failed = (Answer::Unreachable, 0, "It is gone.");
                assert_eq!((done.answer, done.first, done.said.as_str()), failed);
            }
            _ => assert_eq!(
                (done.answer, done.first, done.said.as_str()),
                (Answer::Lost, number, "")
            ),
        }
    }
}

#[test]
fn a_cancellation_is_of_the_wait_that_it_names() {
    let lines = "10 0 call lock m0 1000 -
        11 1 call lock m1 1000 -
        12 0 cancel 10000000
        13 0 done 8 0 0 \n20 0 call lock m0 1000 -
        21 0 cancel 10000000
        22 1 cancel 20000000
        30 0 done 2 0 0 ";
    let file = Forged::of(lines);
    let mut reader = reader(&file);
    let calls = reader.read(Duration::MAX).unwrap();
    let cancelled: Vec<_> = calls.iter().map(|call| call.cancelled).collect();
    assert_eq!(cancelled, [Some(ms(12)), None]);
    assert_eq!(calls[0].due(), Some(ms(12)));
    assert_eq!(calls[1].due(), None);
    assert_eq!(reader.open().filter(|call| call.cancelled.is_none()).count(), 1);
}

#[test]
fn what_was_written_too_late_is_kept_for_the_next_reading() {
    let file = Forged::of("10 0 call unlock m0 0 0\n20 0 done 0 0 0 ");
    let text = std::fs::read_to_string(&file.0).unwrap();
    std::fs::write(&file.0, text + "30000000 0 call unl").unwrap();
    let mut reader = reader(&file);
    assert!(reader.read(ms(15)).unwrap().is_empty());
    assert_eq!(reader.open().count(), 1);
    assert_eq!(reader.read(ms(30)).unwrap().len(), 1);
    assert!(reader.read(Duration::MAX).unwrap().is_empty());
}

#[test]
fn a_history_that_ends_within_a_line_is_known() {
    let file = Forged::of("10 0 call unlock m0 0 0");
    let mut reader = reader(&file);
    reader.read(Duration::MAX).unwrap();
    assert!(!reader.is_cut_off());
    let text = std::fs::read_to_string(&file.0).unwrap();
    std::fs::write(&file.0, text.clone() + "20000000 0 do").unwrap();
    reader.read(Duration::MAX).unwrap();
    assert!(reader.is_cut_off() && reader.open().count() == 1);
    std::fs::write(&file.0, text + "20000000 0 done 0 0 0 \n").unwrap();
    assert_eq!(reader.read(Duration::MAX).unwrap().len(), 1);
    assert!(!reader.is_cut_off());
}

#[test]
fn a_process_that_wrote_nothing_did_nothing() {
    let file = Forged::of("");
    std::fs::remove_file(&file.0).unwrap();
    assert!(reader(&file).read(Duration::MAX).unwrap().is_empty());
}

#[test]
fn what_is_no_history_is_refused() {
    for lines in [
        "10 0 lock m0",
        "10 0 call lock m0 1000",
        "10 0 call lock m0 - 1000",
        "10 0 call unlock m0 0 -",
        "10 0 call acquire p0 1000 0 1",
        "10 0 call seize m0 0 0",
        "10 0 done 0 0 0 ",
        "10 0 leave",
        "10 0 cancel",
        "10 0 call unlock m0 0 0\n11 0 call unlock m0 0 0",
        "10 0 call unlock m0 0 0\n11 0 enter",
        "10 0 call unlock m0 0 0\n11 0 leave",
        "10 0 call unlock m0 0 0\n11 1 done 0 0 0 ",
        "10 0 call unlock m0 0 0\n11 0 done 0 0",
        "10 0 enter\n11 0 done 0 0 0 ",
        "10 0 enter\n11 0 enter",
    ] {
        let read = reader(&Forged::of(lines)).read(Duration::MAX);
        assert!(read.is_err(), "{lines:?} was read as {read:?}");
    }
}
