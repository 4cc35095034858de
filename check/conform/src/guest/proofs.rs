//! NVMe hosts that prove their names, and come by secure channels: a kernel that can, against targets that each agree
//! to one way of it.

use std::fmt::Write as _;
use std::net::SocketAddr;

use anyhow::Result;

use super::{Script, Targets, sysroot};
use crate::chap::secret_file;
use crate::report::skip;
use crate::target::{Driver, HOST_AS_GUEST_SEES_IT, Lab, Spec, Target, free_port};

const NAME: &str = "iqn.2026-01.io.lunar.conform:proofs";
pub(crate) const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:5a3c1e7e-6a2b-4f00-8b6e-0d4c7b1f2a90";
const OTHER_HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:00000000-0000-4000-8000-000000000001";
/// As `nvme gen-dhchap-key` writes them.
pub(crate) const HOST_KEY: &str = "DHHC-1:01:J0qR2WNHWlQcsHLbbnAJ90qQOCgwxh9SLRo7BIMIUsGJ8cUH:";
pub(crate) const OWN_KEY: &str = "\
    DHHC-1:03:vKvj8txAGbr1zAhiWuCqWfhElTMBuJNmbSLYzq5peMFgkVsb8mFFZA+ph2YOyBiutoSkY3L1lG7sf2IFAmhJ7neiVrc=:";
const OTHER_KEY: &str = "DHHC-1:00:4lrDhF+MvhKAGi36WonUxV3EeQDztu3Jqe5ZDzwrkxI0PRca:";

/// As `nvme gen-tls-key` writes them.
pub(crate) const CHANNEL_KEY: &str = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:";
const OTHER_CHANNEL_KEY: &str = "NVMeTLSkey-1:01:EBESExQVFhcYGRobHB0eHyAhIiMkJSYnKCkqKywtLi9A/ow7:";

/// With SHA-384, which goes with another cipher suite.
const LONG_CHANNEL_KEY: &str =
    "NVMeTLSkey-1:02:EBESExQVFhcYGRobHB0eHyAhIiMkJSYnKCkqKywtLi8wMTIzNDU2Nzg5Ojs8PT4/YiqVQg==:";

/// What each target agrees to: all there is, each at least once.
const TERMS: [(&str, &str); 6] = [
    ("sha256", "null"),
    ("sha384", "ffdhe2048"),
    ("sha512", "ffdhe3072"),
    ("sha256", "ffdhe4096"),
    ("sha384", "ffdhe6144"),
    ("sha512", "ffdhe8192"),
];

/// The part.
pub(crate) fn part(lab: &Lab, driver: Driver) -> Result<()> {
    let part = format!("proofs/{}", driver.name());
    lab.built()?;
    let mut found = None;
    lab.report.check(&part, "packages for the guest", || {
        found = Some(sysroot::secure(&lab.report)?);
        Ok(())
    });
    let Some(sysroot) = found else { return Ok(()) };
    let script = Script { name: "proofs", is_service: false, part: &part, driver, sysroot: &sysroot, more: None };
    lab.report.check(&part, "guest ran to its end", || script.run(lab, targets(lab, driver)?));
    Ok(())
}

fn targets(lab: &Lab, driver: Driver) -> Result<Targets> {
    let files = [secret_file(lab, ("host-key", HOST_KEY))?, secret_file(lab, ("own-key", OWN_KEY))?];
    let key = format!("{HOST}={}", files.join(","));
    let channels = [("channel-key", CHANNEL_KEY), ("long-channel-key", LONG_CHANNEL_KEY)];
    let channel = |file| Ok::<_, anyhow::Error>(format!("{HOST}={}", secret_file(lab, file)?));
    let [channel, long] = channels.map(channel);
    let mut settings = format!("HOST={HOST_AS_GUEST_SEES_IT}\nHOSTNQN={HOST}\nOTHER_HOST={OTHER_HOST}\n");
    // Both names are made of one.
    writeln!(settings, "NQN={}", NAME.replacen("iqn.", "nqn.", 1))?;
    writeln!(settings, "HOST_KEY={HOST_KEY}\nOWN_KEY={OWN_KEY}\nOTHER_KEY={OTHER_KEY}")?;
    writeln!(settings, "CHANNEL_KEY={CHANNEL_KEY}\nOTHER_CHANNEL_KEY={OTHER_CHANNEL_KEY}")?;
    writeln!(settings, "LONG_CHANNEL_KEY={LONG_CHANNEL_KEY}")?;
    let (mut main, mut others, mut ways) = (None, Vec::new(), String::new());
    for (hash, group) in TERMS {
        let flags = ["--host-key", &key, "--dhchap-hash", hash, "--dhchap-group", group];
        let (port, target, spec) = start(lab, driver, &flags)?;
        write!(ways, "{port}:{hash}:{group} ")?;
        match &main {
            None => main = Some((target, spec)),
            Some(_) => others.push(target),
        }
    }
    writeln!(settings, "WAYS=\"{}\"", ways.trim_end())?;
    let (port, target, _) = start(lab, driver, &["--tls-key", &channel?, "--tls-key", &long?])?;
    writeln!(settings, "SECURE={port}")?;
    others.push(target);
    others.push(configured(lab, driver, &mut settings)?);
    let (target, spec) = main.map_or_else(|| skip("no target was started"), Ok)?;
    Ok(Targets { main: Some(target), spec, others, settings, grows: None })
}

/// A service whose file says all that flags say, and more: a portal that demands secure channels, and a referral.
fn configured(lab: &Lab, driver: Driver, settings: &mut String) -> Result<Target> {
    let folder = lab.scratch.join(format!("proofs-{}", driver.name()));
    std::fs::create_dir_all(&folder)?;
    let (both, demanded, socket) = (free_port()?, free_port()?, folder.join("api.sock"));
    let files = [("file-host-key", HOST_KEY), ("file-own-key", OWN_KEY), ("file-channel-key", CHANNEL_KEY)];
    let [host, own, channel] = files.map(|file| secret_file(lab, file));
    let (host, own, channel) = (host?, own?, channel?);
    let portal = |name: &str, at: SocketAddr, more: &str| {
        let told = format!("{HOST_AS_GUEST_SEES_IT}:{}", at.port());
        format!(
            "[portal.{name}]\naddress = \"{at}\"\nadvertise = \"{told}\"\nprotocol = \"nvme-tcp\"\n\
             group = \"p\"\n{more}"
        )
    };
    let text = format!(
        "[server]\ncores = 2\nmemory = \"32M\"\ndriver = \"{}\"\nstate = \"{}\"\n[api]\nsocket = \"{}\"\n\
         [user.\"{HOST}\"]\nsecret = {{ file = \"{host}\" }}\n[user.own]\nsecret = {{ file = \"{own}\" }}\n\
         [tls-key.channel]\nsecret = {{ file = \"{channel}\" }}\n\
         [volume.disk]\nkind = \"ram\"\nsize = \"64M\"\n[portal-group.p]\ntag = 1\n{}{}\
         [referral.other]\naddress = \"192.0.2.7\"\n\
         [target.main]\nnqn = \"{}\"\nportal-groups = [\"p\"]\nauthentication = \"mutual-chap\"\n\
         users = [\"{HOST}\"]\nmutual-user = \"own\"\ndhchap-hashes = [\"sha256\"]\ndhchap-groups = [\"ffdhe2048\"]\n\
         [group.hosts]\ntargets = [\"main\"]\ninitiators = [\"{HOST}\"]\ntls-keys = [\"channel\"]\n\
         luns = {{ 0 = \"disk\" }}\n",
        driver.name().replace('_', "-"),
        folder.join("state").display(),
        socket.display(),
        portal("both", both, ""),
        portal("demanded", demanded, "tls = \"required\"\n"),
        NAME.replacen("iqn.", "nqn.", 1),
    );
    let file = folder.join("lunar.toml");
    std::fs::write(&file, text)?;
    writeln!(settings, "BOTH={}\nDEMANDED={}", both.port(), demanded.port())?;
    let mut spec = Spec::new(driver, Vec::<String>::new())?;
    (spec.listen, spec.daemon) = (vec![both, demanded], Some(file));
    Target::start_named(lab, &spec, NAME)
}

/// A target with a small disk, and the port of its NVMe/TCP.
fn start(lab: &Lab, driver: Driver, flags: &[&str]) -> Result<(u16, Target, Spec)> {
    let port = free_port()?;
    let common = ["--name", NAME, "--nvme", &port.to_string()];
    let mut spec = Spec::new(driver, ["ram:64M"])?.flags(&[&common[..], flags].concat());
    spec.for_guest = true;
    Ok((port.port(), Target::start_named(lab, &spec, NAME)?, spec))
}
