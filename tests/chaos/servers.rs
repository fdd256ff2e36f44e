//! The members of the quorum, and the network between them and the clients.
//!
//! Each server and each client is a host of its own, if namespaces can be made: then each direction
//! between two of them can be cut by itself, and what was sent meanwhile arrives late. Otherwise all
//! are on loopback, with a proxy before each server, which cuts it off from all clients at once.

use std::collections::BTreeSet;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::thread;

use memlock_tests::hosts::Hosts;
use memlock_tests::proxy::{Fault, Match, Proxy};
use memlock_tests::server::Memcached;

use crate::Failure;

/// How many servers there are, and how many hosts of clients.
pub(crate) const SERVERS: usize = 5;
pub(crate) const CLIENTS: usize = 8;
/// The host that has the bridge.
const HUB: usize = 1;

/// Which requests or replies are lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Direction {
    Requests,
    Replies,
    Both,
}

/// What is cut between a client's host and a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Cut {
    pub(crate) client: usize,
    pub(crate) server: usize,
    pub(crate) direction: Direction,
}

type Job = Box<dyn FnOnce(&Memcached) + Send>;

/// A server, and the thread that is on its host.
struct Member {
    jobs: Sender<Job>,
    address: String,
}

impl Member {
    fn start(hosts: Option<(Arc<Hosts>, usize)>) -> Result<Member, Failure> {
        let (jobs, incoming) = mpsc::channel::<Job>();
        let (tell, told) = mpsc::channel();
        thread::spawn(move || {
            let mut args = vec!["-F".to_owned(), "-M".to_owned()];
            let mut host = None;
            if let Some((hosts, number)) = hosts {
                if let Err(why) = hosts.enter(number) {
                    let _ = tell.send(Err(why));
                    return;
                }
                args.extend(["-l".to_owned(), hosts.address(number)]);
                host = Some(hosts.address(number));
            }
            let args: Vec<&str> = args.iter().map(String::as_str).collect();
            let server = Memcached::with_args(&args);
            let host = host.unwrap_or_else(|| "127.0.0.1".to_owned());
            let _ = tell.send(Ok(format!("{host}:{}", server.port())));
            for job in incoming {
                job(&server);
            }
        });
        Ok(Member { jobs, address: told.recv()?? })
    }
}

enum Network {
    Hosts(Arc<Hosts>),
    Proxies(Vec<Proxy>),
}

/// All of it.
pub(crate) struct Servers {
    members: Vec<Member>,
    network: Network,
    cuts: BTreeSet<Cut>,
}

impl Servers {
    pub(crate) fn start() -> Result<Servers, Failure> {
        let hosts = Hosts::new(HUB + SERVERS + CLIENTS).and_then(|hosts| {
            // Also whether the firewall works.
            hosts.cut(HUB, &[]).map(|()| hosts)
        });
        let hosts = match hosts {
            Ok(hosts) => Some(Arc::new(hosts)),
            Err(why) => {
                println!("Without hosts of their own, and cut off from all clients at once: {why}");
                None
            }
        };
        let members = (0..SERVERS)
            .map(|server| {
                Member::start(hosts.as_ref().map(|hosts| (Arc::clone(hosts), HUB + server)))
            })
            .collect::<Result<Vec<_>, _>>()?;
        let network = match hosts {
            Some(hosts) => Network::Hosts(hosts),
            None => Network::Proxies(
                members.iter().map(|member| Proxy::start(&member.address)).collect(),
            ),
        };
        Ok(Servers { members, network, cuts: BTreeSet::new() })
    }

    pub(crate) fn addresses(&self) -> Vec<String> {
        match &self.network {
            Network::Hosts(_) => self.members.iter().map(|member| member.address.clone()).collect(),
            Network::Proxies(proxies) => proxies.iter().map(Proxy::address).collect(),
        }
    }

    /// Where a client lives.
    pub(crate) fn namespace(&self, client: usize) -> Option<RawFd> {
        match &self.network {
            Network::Hosts(hosts) => Some(hosts.namespace(HUB + SERVERS + client)),
            Network::Proxies(_) => None,
        }
    }

    fn run(&self, servers: &[usize], job: impl Fn(&Memcached) + Clone + Send + 'static) {
        let (tell, told) = mpsc::channel();
        for &server in servers {
            let (job, tell) = (job.clone(), tell.clone());
            // A thread that is gone has panicked, with what was wrong.
            let _ = self.members[server].jobs.send(Box::new(move |server| {
                job(server);
                let _ = tell.send(());
            }));
        }
        drop(tell);
        told.iter().for_each(drop);
    }

    pub(crate) fn kill(&self, servers: &[usize]) {
        self.run(servers, |server| server.kill());
    }

    pub(crate) fn restart(&self, servers: &[usize]) {
        self.run(servers, |server| server.restart());
    }

    pub(crate) fn pause(&self, server: usize) {
        self.run(&[server], |server| server.pause());
    }

    pub(crate) fn resume(&self, server: usize) {
        self.run(&[server], |server| server.resume());
    }

    pub(crate) fn cut(&mut self, cut: Cut, is_cut: bool) -> Result<(), Failure> {
        if is_cut {
            self.cuts.insert(cut);
        } else {
            self.cuts.remove(&cut);
        }
        match &self.network {
            Network::Hosts(hosts) => {
                let cuts = |matches: &dyn Fn(&Cut) -> bool| -> Vec<Cut> {
                    self.cuts.iter().copied().filter(|cut| matches(cut)).collect()
                };
                let clients: Vec<usize> =
                    cuts(&|it| it.server == cut.server && it.direction != Direction::Replies)
                        .iter()
                        .map(|cut| HUB + SERVERS + cut.client)
                        .collect();
                hosts.cut(HUB + cut.server, &clients)?;
                let servers: Vec<usize> =
                    cuts(&|it| it.client == cut.client && it.direction != Direction::Requests)
                        .iter()
                        .map(|cut| HUB + cut.server)
                        .collect();
                hosts.cut(HUB + SERVERS + cut.client, &servers)?;
            }
            Network::Proxies(proxies) => {
                let proxy = &proxies[cut.server];
                proxy.clear_rules();
                proxy.black_hole(false);
                for other in self.cuts.iter().filter(|other| other.server == cut.server) {
                    match other.direction {
                        Direction::Both => proxy.black_hole(true),
                        Direction::Requests => proxy.inject_always(Match::Any, Fault::DropRequest),
                        Direction::Replies => proxy.inject_always(Match::Any, Fault::SwallowReply),
                    }
                }
                if !self.cuts.iter().any(|other| other.server == cut.server) {
                    // What lost something stays silent.
                    proxy.refuse(true);
                    proxy.refuse(false);
                }
            }
        }
        Ok(())
    }
}
