//! The trait, spoken to a driver.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use memlock_core::{Answer, Loss, Mismatch, Notice};

use super::driver::{Driver, hex, unhex};
use super::{
    Counter, Door, For, Held, List, Outcome, Owner, PermitHolder, PermitRequest, Renewed,
    Semaphore, millis,
};

/// A client of a driver.
#[derive(Debug)]
pub struct Remote(Object);

impl Remote {
    /// Opens one.
    ///
    /// # Errors
    /// For an URL that cannot be used.
    pub fn open(driver: &Arc<Driver>, url: &str) -> Outcome<Remote> {
        let number = driver.number();
        driver.call(0, &format!("0 open {number} {}", hex(url.as_bytes())))?;
        let client = Object { driver: Arc::clone(driver), number, thread: 0, gone: false.into() };
        Ok(Remote(client))
    }
}

/// An object of a driver. Dropping it drops the driver's.
#[derive(Debug)]
struct Object {
    driver: Arc<Driver>,
    number: u64,
    /// The thread that its calls run on; 0: a thread for each.
    thread: u64,
    gone: AtomicBool,
}

impl Object {
    fn call(&self, request: &str) -> Outcome<Vec<String>> {
        self.driver.call(self.thread, &format!("{} {request}", self.number))
    }

    fn number<T: std::str::FromStr>(&self, request: &str) -> Outcome<T> {
        self.call(request).map(|values| parsed(&values[0]))
    }

    /// Makes another object with this one. What is acquired has a thread of its own.
    fn make(&self, has_thread: bool, request: &str) -> Outcome<(Object, Vec<String>)> {
        let (driver, number) = (Arc::clone(&self.driver), self.driver.number());
        let thread = if has_thread { number } else { 0 };
        let (verb, args) = request.split_once(' ').expect("each has arguments");
        let made = format!("{} {verb} {number} {args}", self.number);
        // Dropped at once where nothing was made: its thread ends with it.
        let object = Object { driver, number, thread, gone: (!has_thread).into() };
        let values = self.driver.call(thread, &made)?;
        object.gone.store(false, Ordering::Relaxed);
        Ok((object, values))
    }

    /// The last call of an object that ends with it.
    fn end(&self, request: &str) -> Outcome<()> {
        self.gone.store(true, Ordering::Relaxed);
        self.call(request).map(drop)
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        if !self.gone.load(Ordering::Relaxed) {
            // The driver may have been killed, and its objects with it.
            let _ = self.driver.try_call(self.thread, &format!("{} drop", self.number));
        }
    }
}

fn parsed<T: std::str::FromStr>(value: &str) -> T {
    value.parse().unwrap_or_else(|_| panic!("the driver said {value:?}"))
}

fn text(value: &str) -> String {
    String::from_utf8_lossy(&unhex(value)).into_owned()
}

fn max_hold_ms(max_hold: Option<Duration>) -> String {
    max_hold.map_or("-".to_owned(), |longest| millis(longest).to_string())
}

fn answer(values: &[String]) -> Answer {
    Answer::from_code(parsed(&values[0])).expect("an answer of the table")
}

impl Door for Remote {
    fn process(&self) -> u32 {
        self.0.driver.process()
    }

    fn lock(&self, name: &[u8], lease: Duration, wait: For) -> Outcome<Box<dyn Held>> {
        let (name, lease, wait) = (hex(name), millis(lease), wait.ms());
        Ok(Box::new(self.0.make(true, &format!("lock {name} {lease} {wait}"))?.0))
    }

    fn lock_renewed(
        &self,
        name: &[u8],
        lease: Duration,
        max_hold: Option<Duration>,
    ) -> Outcome<Box<dyn Renewed>> {
        let (name, lease, longest) = (hex(name), millis(lease), max_hold_ms(max_hold));
        Ok(Box::new(self.0.make(true, &format!("lock_renewed {name} {lease} {longest}"))?.0))
    }

    fn owner(&self, name: &[u8]) -> Outcome<Option<Owner>> {
        let values = self.0.call(&format!("owner {}", hex(name)))?;
        let [token, pid, since] = &values[..] else { return Ok(None) };
        Ok(Some(Owner { token: text(token), pid: parsed(pid), since: parsed(since) }))
    }

    fn force_unlock(&self, name: &[u8], token: &str) -> Outcome<()> {
        self.0.call(&format!("force_unlock {} {}", hex(name), hex(token.as_bytes()))).map(drop)
    }

    fn semaphore_with(
        &self,
        name: &[u8],
        permits: Option<u32>,
        lease: Duration,
        mismatch: Mismatch,
    ) -> Outcome<Box<dyn Semaphore>> {
        let permits = permits.map_or("-".to_owned(), |permits| permits.to_string());
        let mismatch = match mismatch {
            Mismatch::Follow => "follow",
            Mismatch::Resize => "resize",
            Mismatch::Refuse => "refuse",
        };
        let request = format!("semaphore {} {permits} {} {mismatch}", hex(name), millis(lease));
        Ok(Box::new(self.0.make(false, &request)?.0))
    }

    fn counter(&self, key: &str) -> Box<dyn Counter> {
        let made = self.0.make(false, &format!("counter {}", hex(key.as_bytes())));
        Box::new(made.expect("nothing is checked yet").0)
    }

    fn set_up_list(&self, session: &[u8], duration: Duration) -> Outcome<(Answer, Box<dyn List>)> {
        let request = format!("set_up_list {} {}", hex(session), millis(duration));
        let (list, values) = self.0.make(false, &request)?;
        Ok((answer(&values), Box::new(list)))
    }

    fn list(&self, session: &[u8]) -> Outcome<Box<dyn List>> {
        Ok(Box::new(self.0.make(false, &format!("list {}", hex(session)))?.0))
    }

    fn cancel_waits(&self) {
        self.0.call("cancel_waits").expect("it only fails for a client that is closed");
    }
}

impl Held for Object {
    fn fence(&self) -> u64 {
        self.number("fence").expect("it is held")
    }

    fn remaining(&self) -> Duration {
        Duration::from_millis(self.number("remaining").expect("it says 0 at the end"))
    }

    fn extend(&mut self, lease: Duration) -> Outcome<()> {
        self.call(&format!("extend {}", millis(lease))).map(drop)
    }

    fn release(self: Box<Self>) -> Outcome<()> {
        self.end("release")
    }
}

fn loss(value: &str) -> Loss {
    match value {
        "expired" => Loss::Expired,
        "gone" => Loss::Gone,
        "max_hold" => Loss::MaxHold,
        other => panic!("{other:?} is no reason for a loss"),
    }
}

impl Renewed for Object {
    fn is_held(&self) -> bool {
        self.number::<u8>("is_held").expect("it is no call to the server") == 1
    }

    fn check(&self) -> Outcome<bool> {
        self.number::<u8>("check").map(|there| there == 1)
    }

    fn lost(&self) -> Option<Loss> {
        let values = self.call("lost").expect("it is no call to the server");
        values.first().map(|value| loss(value))
    }

    fn wait_lost(&self, limit: Duration) -> Option<Loss> {
        let values = self.call(&format!("wait_lost {}", millis(limit)));
        values.expect("it is no call to the server").first().map(|value| loss(value))
    }

    /// The time that is left is given with a colon before it.
    fn notices(&self) -> Vec<Notice> {
        let notice = |value: &String| match value.strip_prefix(':') {
            Some(left) => Notice::AtRisk(Duration::from_millis(parsed(left))),
            None => Notice::Lost(loss(value)),
        };
        self.call("notices").expect("it is a list of its own").iter().map(notice).collect()
    }

    fn release(self: Box<Self>) -> Outcome<()> {
        self.end("release")
    }
}

impl Semaphore for Object {
    fn acquire(&self, ask: PermitRequest, wait: For) -> Outcome<Box<dyn Held>> {
        let PermitRequest { permits, priority, ages } = ask;
        let request = format!("acquire {permits} {priority} {} {}", u8::from(ages), wait.ms());
        Ok(Box::new(self.make(true, &request)?.0))
    }

    fn acquire_renewed(
        &self,
        permits: u32,
        max_hold: Option<Duration>,
    ) -> Outcome<Box<dyn Renewed>> {
        let request = format!("acquire_renewed {permits} {}", max_hold_ms(max_hold));
        Ok(Box::new(self.make(true, &request)?.0))
    }

    fn set_up(&self, life: Duration) -> Outcome<Answer> {
        self.call(&format!("set_up {}", millis(life))).map(|values| answer(&values))
    }

    fn tear_down(&self) -> Outcome<()> {
        self.call("tear_down").map(drop)
    }

    fn resize(&self, permits: u32) -> Outcome<()> {
        self.call(&format!("resize {permits}")).map(drop)
    }

    fn permits(&self) -> Outcome<u32> {
        self.number("permits")
    }

    fn available(&self) -> Outcome<u32> {
        self.number("available")
    }

    fn holders(&self) -> Outcome<Vec<PermitHolder>> {
        let known = |values: &[String]| PermitHolder {
            token: text(&values[0]),
            host: text(&values[1]),
            pid: parsed(&values[2]),
            permits: parsed(&values[3]),
            since: parsed(&values[4]),
            remaining: Duration::from_millis(parsed(&values[5])),
        };
        Ok(self.call("holders")?.chunks(6).map(known).collect())
    }
}

impl Counter for Object {
    fn set_up(&self, permits: u64) -> Outcome<Answer> {
        self.call(&format!("set_up {permits}")).map(|values| answer(&values))
    }

    fn try_acquire(&self) -> Outcome<()> {
        self.call("try_acquire").map(drop)
    }

    fn retry(&self, wait: For) -> Outcome<()> {
        self.call(&format!("retry {}", wait.ms())).map(drop)
    }

    fn park(&self, priority: i64, wait: For) -> Outcome<()> {
        self.call(&format!("park {priority} {}", wait.ms())).map(drop)
    }

    fn release(&self) -> Outcome<()> {
        self.call("release").map(drop)
    }

    fn available(&self) -> Outcome<u64> {
        self.number("available")
    }
}

fn inserted(values: &[String]) -> (u64, bool) {
    (parsed(&values[0]), values[1] == "1")
}

impl List for Object {
    fn insert(&mut self, key: &[u8]) -> Outcome<(u64, bool)> {
        self.call(&format!("insert {}", hex(key))).map(|values| inserted(&values))
    }

    fn insert_many(&mut self, keys: &[&[u8]]) -> Outcome<Vec<(u64, bool)>> {
        let keys: String = keys.iter().map(|key| format!(" {}", hex(key))).collect();
        Ok(self.call(&format!("insert_many{keys}"))?.chunks(2).map(inserted).collect())
    }

    fn id(&mut self, key: &[u8]) -> Outcome<Option<u64>> {
        let values = self.call(&format!("id {}", hex(key)))?;
        Ok(values.first().map(|id| parsed(id)))
    }

    fn count(&mut self) -> Outcome<u64> {
        self.number("count")
    }

    fn walk(&mut self) -> Outcome<Vec<(u64, Vec<u8>)>> {
        let entry = |values: &[String]| (parsed(&values[0]), unhex(&values[1]));
        Ok(self.call("walk")?.chunks(2).map(entry).collect())
    }

    fn tear_down(&mut self) -> Outcome<()> {
        self.call("tear_down").map(drop)
    }
}
