//! The part `authentication`: NVMe in-band authentication (DH-HMAC-CHAP) and TLS, by a kernel that supports them,
//! against targets that each permit one hash and one DH group.

use std::fmt::Write as _;
use std::net::SocketAddr;

use anyhow::Result;

use super::{Script, Targets, sysroot};
use crate::chap::secret_file;
use crate::report::skip;
use crate::target::{Driver, HOST_AS_GUEST_SEES_IT, Lab, Spec, Target, free_port};

const NAME: &str = "iqn.2026-01.io.lunar.conform:authentication";
pub(crate) const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:5a3c1e7e-6a2b-4f00-8b6e-0d4c7b1f2a90";
const OTHER_HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:00000000-0000-4000-8000-000000000001";
/// In the format of `nvme gen-dhchap-key`.
pub(crate) const HOST_KEY: &str = "DHHC-1:01:J0qR2WNHWlQcsHLbbnAJ90qQOCgwxh9SLRo7BIMIUsGJ8cUH:";
pub(crate) const CONTROLLER_KEY: &str = "\
    DHHC-1:03:vKvj8txAGbr1zAhiWuCqWfhElTMBuJNmbSLYzq5peMFgkVsb8mFFZA+ph2YOyBiutoSkY3L1lG7sf2IFAmhJ7neiVrc=:";
pub(crate) const OTHER_KEY: &str = "DHHC-1:00:4lrDhF+MvhKAGi36WonUxV3EeQDztu3Jqe5ZDzwrkxI0PRca:";

/// In the format of `nvme gen-tls-key`.
pub(crate) const TLS_PSK: &str = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:";
const OTHER_TLS_PSK: &str = "NVMeTLSkey-1:01:EBESExQVFhcYGRobHB0eHyAhIiMkJSYnKCkqKywtLi9A/ow7:";

/// A key for SHA-384, and so for another cipher suite.
const TLS_PSK_SHA384: &str =
    "NVMeTLSkey-1:02:EBESExQVFhcYGRobHB0eHyAhIiMkJSYnKCkqKywtLi8wMTIzNDU2Nzg5Ojs8PT4/YiqVQg==:";

/// The hash and the DH group that each target permits; all values occur.
const DHCHAP_CHOICES: [(&str, &str); 6] = [
    ("sha256", "null"),
    ("sha384", "ffdhe2048"),
    ("sha512", "ffdhe3072"),
    ("sha256", "ffdhe4096"),
    ("sha384", "ffdhe6144"),
    ("sha512", "ffdhe8192"),
];

/// Runs the part.
pub(crate) fn part(lab: &Lab, driver: Driver) -> Result<()> {
    let part = format!("authentication/{}", driver.name());
    lab.built()?;
    let mut found = None;
    lab.report.check(&part, "packages for the guest", || {
        found = Some(sysroot::ensure_with_tls(&lab.report)?);
        Ok(())
    });
    let Some(sysroot) = found else { return Ok(()) };
    let script = Script {
        name: "authentication",
        is_service: false,
        part: &part,
        driver,
        sysroot: &sysroot,
        processors: 1,
        more: None,
    };
    lab.report.check(&part, "guest ran to its end", || script.run(lab, targets(lab, driver)?));
    Ok(())
}

fn targets(lab: &Lab, driver: Driver) -> Result<Targets> {
    let files = [secret_file(lab, ("host-key", HOST_KEY))?, secret_file(lab, ("own-key", CONTROLLER_KEY))?];
    let key = format!("{HOST}={}", files.join(","));
    let channels = [("channel-key", TLS_PSK), ("long-channel-key", TLS_PSK_SHA384)];
    let channel = |file| Ok::<_, anyhow::Error>(format!("{HOST}={}", secret_file(lab, file)?));
    let [channel, long] = channels.map(channel);
    let mut settings = format!("HOST={HOST_AS_GUEST_SEES_IT}\nHOSTNQN={HOST}\nOTHER_HOST={OTHER_HOST}\n");
    // The NQN is derived from the IQN.
    writeln!(settings, "NQN={}", NAME.replacen("iqn.", "nqn.", 1))?;
    writeln!(settings, "HOST_KEY={HOST_KEY}\nCONTROLLER_KEY={CONTROLLER_KEY}\nOTHER_KEY={OTHER_KEY}")?;
    writeln!(settings, "TLS_KEY={TLS_PSK}\nOTHER_TLS_KEY={OTHER_TLS_PSK}")?;
    writeln!(settings, "TLS_KEY_SHA384={TLS_PSK_SHA384}")?;
    let (mut main, mut others, mut choices) = (None, Vec::new(), String::new());
    for (hash, group) in DHCHAP_CHOICES {
        let flags = ["--host-key", &key, "--dhchap-hash", hash, "--dhchap-group", group];
        let (port, target, spec) = start(lab, driver, &flags)?;
        write!(choices, "{port}:{hash}:{group} ")?;
        match &main {
            None => main = Some((target, spec)),
            Some(_) => others.push(target),
        }
    }
    writeln!(settings, "ENDPOINTS=\"{}\"", choices.trim_end())?;
    let (port, target, _) = start(lab, driver, &["--tls-key", &channel?, "--tls-key", &long?])?;
    writeln!(settings, "TLS_PORT={port}")?;
    others.push(target);
    others.push(configured(lab, driver, &mut settings)?);
    let (target, spec) = main.map_or_else(|| skip("no target was started for DH-HMAC-CHAP"), Ok)?;
    Ok(Targets { main: Some(target), spec, others, settings, growth: None })
}

/// Starts a daemon whose configuration file has the same keys, a portal that requires TLS, and a referral.
fn configured(lab: &Lab, driver: Driver, settings: &mut String) -> Result<Target> {
    let folder = lab.scratch.join(format!("authentication-{}", driver.name()));
    std::fs::create_dir_all(&folder)?;
    let (both, demanded, socket) = (free_port()?, free_port()?, folder.join("api.sock"));
    let files = [("file-host-key", HOST_KEY), ("file-own-key", CONTROLLER_KEY), ("file-channel-key", TLS_PSK)];
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
    writeln!(settings, "TLS_PERMITTED_PORT={}\nTLS_REQUIRED_PORT={}", both.port(), demanded.port())?;
    let mut spec = Spec::new(driver, Vec::<String>::new())?;
    (spec.listen, spec.daemon) = (vec![both, demanded], Some(file));
    Target::start_named(lab, &spec, NAME)
}

/// Starts a target with a small volume; returns its NVMe/TCP port, too.
fn start(lab: &Lab, driver: Driver, flags: &[&str]) -> Result<(u16, Target, Spec)> {
    let port = free_port()?;
    let common = ["--name", NAME, "--nvme", &port.to_string()];
    let mut spec = Spec::new(driver, ["ram:64M"])?.flags(&[&common[..], flags].concat());
    spec.for_guest = true;
    Ok((port.port(), Target::start_named(lab, &spec, NAME)?, spec))
}
