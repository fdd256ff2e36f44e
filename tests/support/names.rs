//! Host names that only this process knows, and that lead to other addresses when the test says so.
//!
//! The `getaddrinfo` here stands before that of the C library.

use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char, c_int};
use std::net::{IpAddr, TcpListener};
use std::sync::{Condvar, Mutex, PoisonError};

use crate::launch::number;
use crate::relay::Relay;
use crate::wire::lock;

/// A host name. Without addresses it does not exist.
#[derive(Debug)]
pub struct Name(String);

/// What a resolver says of a name.
#[derive(Debug, Default)]
struct Entry {
    answer: Answer,
    asked: usize,
}

#[derive(Clone, Debug, Default)]
enum Answer {
    #[default]
    Missing,
    Addresses(Vec<CString>),
    /// None, until there is another answer.
    Silence,
}

static ENTRIES: Mutex<Option<HashMap<String, Entry>>> = Mutex::new(None);
static CHANGED: Condvar = Condvar::new();

impl Name {
    /// A name of the test's own, which leads to these IP addresses.
    pub fn of(addresses: &[&str]) -> Name {
        let name = Name(format!("name-{}.test", number()));
        name.lead_to(addresses);
        name
    }

    /// The name with this port, as in a URL.
    pub fn with_port(&self, port: u16) -> String {
        format!("{}:{port}", self.0)
    }

    /// From now on the name leads to these addresses; without any, there is no such name.
    pub fn lead_to(&self, addresses: &[&str]) {
        let texts = addresses.iter().map(|&text| CString::new(text).expect("an address"));
        self.answer(if addresses.is_empty() {
            Answer::Missing
        } else {
            Answer::Addresses(texts.collect())
        });
    }

    /// From now on nobody answers a question for the name.
    pub fn be_silent(&self) {
        self.answer(Answer::Silence);
    }

    /// How often the name was asked for.
    pub fn asked(&self) -> usize {
        lock(&ENTRIES).get_or_insert_default().get(&self.0).map_or(0, |entry| entry.asked)
    }

    fn answer(&self, answer: Answer) {
        lock(&ENTRIES).get_or_insert_default().entry(self.0.clone()).or_default().answer = answer;
        CHANGED.notify_all();
    }
}

impl Drop for Name {
    fn drop(&mut self) {
        lock(&ENTRIES).get_or_insert_default().remove(&self.0);
        CHANGED.notify_all();
    }
}

/// Relays on one port of several IP addresses, each before the server at the address beside it.
/// Returns the port, too.
pub fn relays<const N: usize>(places: [(&str, String); N]) -> ([Relay; N], u16) {
    let (listeners, port) = listeners(&places.each_ref().map(|(ip, _)| *ip));
    let mut listeners = listeners.into_iter();
    let relays = places.map(|(_, server)| {
        Relay::on(listeners.next().expect("as many as there are places"), server)
    });
    (relays, port)
}

/// Sockets that listen on one port of several IP addresses, and the port.
pub fn listeners(ips: &[&str]) -> (Vec<TcpListener>, u16) {
    let ips: Vec<IpAddr> = ips.iter().map(|ip| ip.parse().expect("an IP address")).collect();
    for _ in 0..100 {
        let first = TcpListener::bind((ips[0], 0)).expect("a free port");
        let port = first.local_addr().expect("a bound socket has an address").port();
        let others = ips[1..].iter().map(|&ip| TcpListener::bind((ip, port)));
        // Another program may have the port at one of the addresses.
        if let Ok(others) = others.collect::<Result<Vec<_>, _>>() {
            return (std::iter::once(first).chain(others).collect(), port);
        }
    }
    panic!("no port is free at all of {ips:?}");
}

/// What the resolver says of one of these names, as soon as it says something; `None`: the name is
/// not one of them.
fn answer_of(name: &str) -> Option<Vec<CString>> {
    let mut entries = lock(&ENTRIES);
    entries.get_or_insert_default().get_mut(name)?.asked += 1;
    loop {
        // It may have gone meanwhile.
        match entries.get_or_insert_default().get(name).map(|entry| &entry.answer) {
            None | Some(Answer::Missing) => return Some(Vec::new()),
            Some(Answer::Addresses(addresses)) => return Some(addresses.clone()),
            Some(Answer::Silence) => {}
        }
        entries = CHANGED.wait(entries).unwrap_or_else(PoisonError::into_inner);
    }
}

type Resolve = unsafe extern "C" fn(
    *const c_char,
    *const c_char,
    *const libc::addrinfo,
    *mut *mut libc::addrinfo,
) -> c_int;

/// That of the C library.
fn real() -> Resolve {
    // SAFETY: the name is NUL-terminated; the function has this type.
    unsafe {
        let found = libc::dlsym(libc::RTLD_NEXT, c"getaddrinfo".as_ptr());
        assert!(!found.is_null(), "the C library has no getaddrinfo");
        std::mem::transmute::<*mut libc::c_void, Resolve>(found)
    }
}

/// Stands before that of the C library, which still answers for all other names.
///
/// # Safety
/// As for that function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: *const libc::addrinfo,
    found: *mut *mut libc::addrinfo,
) -> c_int {
    let name = if node.is_null() {
        None
    } else {
        // SAFETY: a name that is not null is NUL-terminated.
        unsafe { CStr::from_ptr(node) }.to_str().ok()
    };
    let Some(addresses) = name.and_then(answer_of) else {
        // SAFETY: the caller's own arguments.
        return unsafe { real()(node, service, hints, found) };
    };
    // One list of all the lists that the C library makes of one address each.
    let mut end = found;
    for address in &addresses {
        // SAFETY: as above; `end` is the caller's place for the list, or the end of that list.
        unsafe {
            let failed = real()(address.as_ptr(), service, hints, end);
            if failed != 0 {
                return failed;
            }
            while !(*end).is_null() {
                end = &raw mut (**end).ai_next;
            }
        }
    }
    if addresses.is_empty() { libc::EAI_NONAME } else { 0 }
}
