//! A driver: a process that makes calls in its language when it is asked to.
//!
//! A request is a line `CALL THREAD OBJECT VERB ARGUMENT…`, and its replies are `CALL at TID`, the
//! kernel's id of the thread that the call runs on, and then `CALL ok VALUE…` or
//! `CALL no ANSWER SENTENCE`, without a sentence where the language gives a plain value. The
//! numbers of calls, threads and objects are chosen here. Calls on one thread run in their order,
//! since a lock may belong to a thread; 0 is a thread for this call alone. So a call that waits
//! holds up no other. Bytes are `x` and hexadecimal digits, durations are milliseconds, a wait of
//! -1 is without a limit, and `-` is no value.
//!
//! When the driver's input ends, so does the driver, and releases nothing.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use memlock_core::Answer;

use super::asleep;
use super::{No, Outcome};

/// For any call, however slow the machine. A wait without a limit that takes longer is lost.
const PATIENCE: Duration = Duration::from_secs(120);

/// A running driver. It ends with this process.
#[derive(Debug)]
pub struct Driver {
    process: u32,
    child: Mutex<Child>,
    input: Mutex<ChildStdin>,
    calls: Calls,
    last: AtomicU64,
}

type Calls = Arc<Mutex<HashMap<u64, Sender<Reply>>>>;

enum Reply {
    At(u32),
    Done(Outcome<Vec<String>>),
}

impl Driver {
    /// Starts it. Its first line says that it is ready; without one `otherwise` is what to say.
    pub(super) fn start(mut command: Command, otherwise: &str) -> Driver {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|why| panic!("{otherwise} ({why})"));
        let input = child.stdin.take().expect("its input is a pipe");
        let mut output = BufReader::new(child.stdout.take().expect("its output is a pipe"));
        let mut first = String::new();
        if output.read_line(&mut first).is_err() || first != "ready\n" {
            // It may have ended by itself.
            let _ = child.kill();
            let _ = child.wait();
            panic!("{otherwise}");
        }
        let calls = Calls::default();
        let answered = Arc::clone(&calls);
        thread::spawn(move || read(output, &answered));
        let (process, child, input) = (child.id(), Mutex::new(child), Mutex::new(input));
        Driver { process, child, input, calls, last: AtomicU64::new(0) }
    }

    /// Its process id.
    #[must_use]
    pub fn process(&self) -> u32 {
        self.process
    }

    /// Kills it at once (SIGKILL), with all that it holds.
    pub fn kill(&self) {
        let mut child = lock(&self.child);
        // It fails only when the process is gone already.
        let _ = child.kill();
        let _ = child.wait();
    }

    /// Whether it runs and all its calls are answered, so that another test may use it.
    pub(super) fn is_idle(&self) -> bool {
        matches!(lock(&self.child).try_wait(), Ok(None)) && lock(&self.calls).is_empty()
    }

    /// A number that no object, thread or call has.
    pub(super) fn number(&self) -> u64 {
        self.last.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Makes a call and waits for its answer. `None` when the driver is gone.
    pub(super) fn try_call(&self, thread: u64, request: &str) -> Option<Outcome<Vec<String>>> {
        let number = self.number();
        let (tell, replies) = mpsc::channel();
        lock(&self.calls).insert(number, tell);
        let line = format!("{number} {thread} {request}\n");
        lock(&self.input).write_all(line.as_bytes()).ok()?;
        loop {
            match replies.recv_timeout(PATIENCE) {
                Ok(Reply::At(thread)) => asleep::runs_on(self.process, thread),
                Ok(Reply::Done(outcome)) => return Some(outcome),
                Err(mpsc::RecvTimeoutError::Disconnected) => return None,
                Err(mpsc::RecvTimeoutError::Timeout) => panic!("no answer to: {request}"),
            }
        }
    }

    /// Makes a call and waits for its answer.
    pub(super) fn call(&self, thread: u64, request: &str) -> Outcome<Vec<String>> {
        self.try_call(thread, request).unwrap_or_else(|| {
            panic!("the driver ended, see above for its reason; the call was: {request}")
        })
    }
}

fn read(output: BufReader<ChildStdout>, calls: &Calls) {
    for line in output.lines().map_while(Result::ok) {
        let words: Vec<&str> = line.split(' ').collect();
        let (number, reply) = parsed(&words).unwrap_or_else(|| panic!("the driver said {line:?}"));
        let is_over = matches!(reply, Reply::Done(_));
        let mut calls = lock(calls);
        // The call may have run out of patience.
        if let Some(tell) = calls.get(&number) {
            let _ = tell.send(reply);
        }
        if is_over {
            calls.remove(&number);
        }
    }
    // All others end without an answer.
    lock(calls).clear();
}

fn parsed(words: &[&str]) -> Option<(u64, Reply)> {
    let (number, rest) = words.split_first()?;
    let reply = match rest {
        ["at", thread] => Reply::At(thread.parse().ok()?),
        ["ok", values @ ..] => {
            Reply::Done(Ok(values.iter().map(|value| (*value).to_owned()).collect()))
        }
        ["no", answer, sentence] => {
            let answer = Answer::from_code(answer.parse().ok()?)?;
            let is_plain = *sentence == "-";
            let bytes = if is_plain { Vec::new() } else { unhex(sentence) };
            let sentence = String::from_utf8_lossy(&bytes).into_owned();
            assert!(is_plain || !sentence.is_empty(), "{answer:?} has no sentence");
            Reply::Done(Err(No { answer, sentence }))
        }
        _ => return None,
    };
    Some((number.parse().ok()?, reply))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Bytes as an argument.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold("x".to_owned(), |text, byte| text + &format!("{byte:02x}"))
}

/// Bytes of a reply.
pub(super) fn unhex(text: &str) -> Vec<u8> {
    let digits = text.strip_prefix('x').expect("bytes begin with x");
    let byte = |at| u8::from_str_radix(&digits[at..at + 2], 16).expect("hexadecimal digits");
    (0..digits.len()).step_by(2).map(byte).collect()
}
