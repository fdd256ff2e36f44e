//! Several hosts on one network: network namespaces that are joined by a bridge, each with its own
//! firewall.
//!
//! The namespaces have no names, and nothing of them is in the namespace of the machine: so any
//! number of tests can use the same addresses at the same time. Only root may make them, with `ip`
//! and `nft` on the PATH.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use crate::cable::{self, carries, new_namespace, run};

/// Hosts that reach each other. The first one is the server's by custom.
#[derive(Debug)]
pub struct Hosts {
    namespaces: Vec<File>,
}

/// Which datagrams a firewall drops as they come in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drops {
    /// None.
    Nothing,
    /// All of them, those of the host itself included.
    Everything,
    /// Those that come from other hosts.
    FromOthers,
    /// The same, and their senders are notified that there is no receiver.
    FromOthersAndSaysSo,
}

impl Hosts {
    /// So many hosts, whose firewalls drop nothing.
    pub fn new(count: usize) -> io::Result<Hosts> {
        let namespaces = (0..count).map(|_| new_namespace()).collect::<io::Result<Vec<_>>>()?;
        let hosts = Hosts { namespaces };
        let hub = Some(hosts.namespaces[0].as_raw_fd());
        let lines = [
            "link set lo up",
            "link add hub type bridge",
            "address add 10.77.0.1/24 dev hub",
            "link set hub up",
        ];
        for line in lines {
            run(hub, "ip", &line.split(' ').collect::<Vec<_>>())?;
        }
        for (index, namespace) in hosts.namespaces.iter().enumerate().skip(1) {
            let near = format!("host{index}");
            let there = format!("/proc/{}/fd/{}", std::process::id(), namespace.as_raw_fd());
            let address = format!("{}/24", hosts.address(index));
            run(
                hub,
                "ip",
                &["link", "add", &near, "type", "veth", "peer", "name", "net", "netns", &there],
            )?;
            run(hub, "ip", &["link", "set", &near, "master", "hub", "up"])?;
            let far = Some(namespace.as_raw_fd());
            run(far, "ip", &["link", "set", "lo", "up"])?;
            run(far, "ip", &["address", "add", &address, "dev", "net"])?;
            run(far, "ip", &["link", "set", "net", "up"])?;
            carries(hub, &near)?;
            carries(far, "net")?;
        }
        Ok(hosts)
    }

    /// The address by which the others reach a host.
    pub fn address(&self, host: usize) -> String {
        format!("10.77.0.{}", host + 1)
    }

    /// Sets up the firewall of a host.
    pub fn firewall(&self, host: usize, drops: Drops) -> io::Result<()> {
        let rule = match drops {
            Drops::Nothing => return Ok(()),
            Drops::Everything => "meta l4proto udp drop",
            Drops::FromOthers => "iifname != \"lo\" meta l4proto udp drop",
            Drops::FromOthersAndSaysSo => "iifname != \"lo\" meta l4proto udp reject",
        };
        let script = format!(
            "add table inet fire; \
             add chain inet fire input {{ type filter hook input priority 0; }}; \
             add rule inet fire input {rule}"
        );
        run(Some(self.namespaces[host].as_raw_fd()), "nft", &[&script]).map(drop)
    }

    /// Moves the calling thread to a host: sockets that it opens from now on are there, and so are
    /// the programs that it starts.
    pub fn enter(&self, host: usize) -> io::Result<()> {
        cable::move_to(&self.namespaces[host])
    }
}
