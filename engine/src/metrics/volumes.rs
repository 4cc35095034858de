//! The metrics of volumes.

use super::facts::VolumeFacts;
use super::histogram::add_coarse;
use super::table;
use lunar_control::api::TroubleView;
use lunar_control::metrics::{Family, Page};
use lunar_control::names::Uuid;
use lunar_control::trouble::TroubleCode;
use lunar_control::value::Textual;
use lunar_core::stages::Stage;
use lunar_core::tally::{Event, TallySums};
use lunar_core::traffic::{Class, ClassSums};
use lunar_unit::{MediumState, SharedUnits};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Volumes whose histograms have all buckets: those with the most commands. The page stays below some megabytes with
/// thousands of volumes; of the others it has the number and the sum.
const HISTOGRAMS_MAX: usize = 500;

/// A volume that is served.
pub(super) struct Volume<'a> {
    pub(super) name: &'a str,
    pub(super) facts: &'a VolumeFacts,
    pub(super) sums: TallySums,
    /// Whether its medium is formatted or sanitized.
    is_formatting: bool,
    pub(super) registrants: u64,
    pub(super) is_reserved: bool,
}

impl Volume<'_> {
    pub(super) fn commands(&self) -> u64 {
        Class::ALL.iter().map(|class| self.sums.traffic.of(*class).commands()).sum()
    }

    pub(super) fn state(&self, full: &BTreeSet<&str>) -> &'static str {
        match () {
            () if self.is_formatting => "formatting",
            () if full.contains(self.name) => "full",
            () if self.facts.is_read_only => "read-only",
            () => "up",
        }
    }
}

/// The volumes that troubles of this kind name.
pub(super) fn named(troubles: &[TroubleView], code: TroubleCode) -> BTreeSet<&str> {
    let of_kind = troubles.iter().filter(|trouble| trouble.kind == code.word());
    of_kind.filter_map(|trouble| trouble.subject.strip_prefix("volume ")).collect()
}

/// The volumes that are not served because their stores are unavailable. A volume that is served is not unavailable,
/// whatever was found a moment ago.
pub(super) fn unavailable<'a>(volumes: &[Volume<'_>], troubles: &'a [TroubleView]) -> Vec<&'a str> {
    let is_served = |name: &&str| volumes.iter().any(|volume| volume.name == *name);
    named(troubles, TroubleCode::Unavailable).into_iter().filter(|name| !is_served(name)).collect()
}

/// Writes the counters and the state of these volumes.
pub(super) fn write(
    page: &mut Page,
    all: &BTreeMap<Arc<str>, VolumeFacts>,
    units: &SharedUnits,
    troubles: &[TroubleView],
) {
    let volumes: Vec<_> = all.iter().map(|(name, facts)| read(name, facts, units)).collect();
    state(page, &volumes, troubles);
    page.family(&table::VOLUME_COMMANDS, |samples| {
        for volume in &volumes {
            for class in Class::ALL {
                samples.add(&[volume.name, class.word()], volume.sums.traffic.of(*class).commands());
            }
        }
    });
    page.family(&table::VOLUME_BYTES, |samples| {
        for Volume { name, sums, .. } in &volumes {
            samples.add(&[name, "read"], sums.traffic.read_bytes());
            samples.add(&[name, "write"], sums.traffic.written_bytes());
        }
    });
    latency(page, &volumes);
    page.family(&table::VOLUME_ERRORS, |samples| {
        for Volume { name, sums, .. } in &volumes {
            let mut kinds: BTreeMap<&str, u64> = BTreeMap::new();
            for event in Event::ALL.iter().filter(|event| !event.kind().is_empty()) {
                *kinds.entry(event.kind()).or_default() += sums.of(*event);
            }
            kinds.iter().for_each(|(kind, count)| samples.add(&[name, kind], *count));
        }
    });
    page.family(&table::VOLUME_STAGE_SECONDS, |samples| {
        for Volume { name, sums, .. } in &volumes {
            for stage in Stage::ALL {
                samples.add_seconds(&[name, stage.word()], sums.stages.of(*stage));
            }
        }
    });
    type Number = fn(&Volume<'_>) -> u64;
    let numbers: [(&Family, Number); 8] = [
        (&table::VOLUME_QUEUE, |volume| volume.sums.in_flight),
        (&table::VOLUME_QUEUE_MAX, |volume| volume.sums.in_flight_max),
        (&table::VOLUME_MISALIGNED, |volume| volume.sums.of(Event::Misaligned)),
        (&table::VOLUME_STAGE_COMMANDS, |volume| volume.sums.stages.commands),
        (&table::VOLUME_SLOW, |volume| volume.sums.of(Event::Slow)),
        (&table::VOLUME_UNMAPPED, |volume| volume.sums.of(Event::UnmappedBytes)),
        (&table::VOLUME_REGISTRANTS, |volume| volume.registrants),
        (&table::VOLUME_RESERVED, |volume| volume.is_reserved.into()),
    ];
    for (family, number) in numbers {
        page.family(family, |samples| {
            volumes.iter().for_each(|volume| samples.add(&[volume.name], number(volume)));
        });
    }
}

pub(super) fn read<'a>(name: &'a str, facts: &'a VolumeFacts, units: &SharedUnits) -> Volume<'a> {
    let shared = units.get(facts.unit);
    let medium = shared.as_ref().map(|unit| unit.state().medium()).unwrap_or_default();
    let (registrants, is_reserved) = shared.as_ref().map_or((0, false), |unit| {
        let reservations = unit.reservations();
        (reservations.registrants().count() as u64, reservations.reservation().is_some())
    });
    Volume {
        name,
        facts,
        sums: facts.tally.sums(),
        is_formatting: medium != MediumState::Ready,
        registrants,
        is_reserved,
    }
}

/// Writes identities, states and sizes.
fn state(page: &mut Page, volumes: &[Volume<'_>], troubles: &[TroubleView]) {
    page.family(&table::VOLUME_INFO, |samples| {
        for Volume { name, facts, .. } in volumes {
            let identity = &facts.identity;
            let uuid = Uuid(identity.uuid).text();
            let wwid: String = identity.naa.iter().map(|byte| format!("{byte:02x}")).collect();
            let block = facts.block_size.to_string();
            samples.add(&[name, &uuid, &identity.serial, &format!("naa.{wwid}"), facts.kind, &block], 1);
        }
    });
    let (full, unavailable) = (named(troubles, TroubleCode::NoSpace), unavailable(volumes, troubles));
    page.family(&table::VOLUME_UP, |samples| {
        volumes.iter().for_each(|volume| samples.add(&[volume.name], 1));
        unavailable.iter().for_each(|name| samples.add(&[name], 0));
    });
    page.family(&table::VOLUME_READ_ONLY, |samples| {
        volumes.iter().for_each(|volume| samples.add(&[volume.name], volume.facts.is_read_only.into()));
    });
    page.family(&table::VOLUME_STATE, |samples| {
        volumes.iter().for_each(|volume| samples.add(&[volume.name, volume.state(&full)], 1));
        unavailable.iter().for_each(|name| samples.add(&[name, "unavailable"], 1));
    });
    page.family(&table::VOLUME_SIZE, |samples| {
        for volume in volumes {
            volume.facts.size.into_iter().for_each(|size| samples.add(&[volume.name], size));
        }
    });
}

/// Writes the latencies of reads, of writes, and of all other commands together.
fn latency(page: &mut Page, volumes: &[Volume<'_>]) {
    let mut counts: Vec<_> = volumes.iter().map(Volume::commands).collect();
    counts.sort_unstable_by(|one, other| other.cmp(one));
    let least = counts.get(HISTOGRAMS_MAX).map_or(0, |count| count + 1);
    page.family(&table::VOLUME_COMMAND_SECONDS, |samples| {
        for volume in volumes {
            let traffic = &volume.sums.traffic;
            let mut other = ClassSums::default();
            for class in Class::ALL.iter().filter(|class| !matches!(class, Class::Read | Class::Write)) {
                other.merge(traffic.of(*class));
            }
            let is_whole = volume.commands() >= least;
            for (word, sums) in
                [("read", traffic.of(Class::Read)), ("write", traffic.of(Class::Write)), ("other", &other)]
            {
                match is_whole {
                    true => add_coarse(samples, &[volume.name, word], sums),
                    false => samples.add_histogram(&[volume.name, word], [(None, sums.commands())], sums.nanoseconds),
                }
            }
        }
    });
}
