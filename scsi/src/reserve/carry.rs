//! A change of reservations on all cores: on the medium first if it outlives a restart, then known to every nexus, and
//! only then answered.

use super::{News, RESERVATIONS, Request, attention};
use crate::admit::Refusal;
use crate::fault;
use crate::lu::LogicalUnit;
use crate::manage::is_at;
use crate::nexus::Nexus;
use crate::target::{Mail, Target};
use lunar_core::io::Fault;
use lunar_core::port::NexusName;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

impl Target {
    /// Carries out what a nexus asks for. Returns when all cores go by it, and the tasks that it ends are gone.
    ///
    /// # Errors
    /// How the command ends that changes nothing.
    pub(crate) async fn reserve(
        &self,
        nexus: &Nexus,
        tag: u64,
        lu: &LogicalUnit,
        request: &Request,
    ) -> Result<(), Refusal> {
        let turn = lu.shared.turn().await;
        let before = lu.shared.reservations().clone();
        let (after, news) = before.changed(&nexus.name, request)?;
        if after == before {
            return Ok(());
        }
        let bytes = after.to_kept().ok_or_else(|| fault::transfer(Fault::NoSpace))?;
        if before.to_kept().as_ref() != Some(&bytes) {
            lu.unit.keep.keep(RESERVATIONS, bytes).await.map_err(fault::transfer)?;
        }
        *lu.shared.reservations() = after;
        let news = Arc::new(news);
        self.tell_reservations(lu.lun, &news);
        self.everywhere.broadcast(Mail::Reservations { lun: lu.lun, news: news.clone() }).await;
        drop(turn);
        if news.aborts {
            self.end_preempted(nexus, tag, lu.lun, news).await;
        }
        Ok(())
    }

    /// Ends the tasks of those who were preempted, everywhere. Whoever is aborted meanwhile waits no longer: two who
    /// preempt each other would wait for ever.
    async fn end_preempted(&self, nexus: &Nexus, tag: u64, lun: u16, news: Arc<News>) {
        let mut aborted = pin!(nexus.tasks.until_aborted(|(t, l)| t == tag && is_at(nexus, lun, l)));
        let mut ended = pin!(async {
            self.end_of(lun, &news).await;
            self.everywhere.broadcast(Mail::Preempted { lun, news: news.clone() }).await;
        });
        poll_fn(|cx| match ended.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(()),
            Poll::Pending => aborted.as_mut().poll(cx),
        })
        .await;
    }

    /// Aborts the tasks of those of this core who were preempted, and waits for them.
    pub(crate) async fn end_of(&self, lun: u16, news: &News) {
        let mut ended = self.nexuses();
        ended.retain(|nexus| news.ends(&nexus.name));
        self.end_at(&ended, &[lun]).await;
    }

    /// Has the nexuses of this core go by the reservations as they are now, and tells them.
    pub(crate) fn tell_reservations(&self, lun: u16, news: &News) {
        let Some(lu) = self.unit(lun) else { return };
        for nexus in self.nexuses() {
            // Whoever has not addressed the unit yet looks when it does, and is told of power on.
            let Some(itl) = nexus.lun_of(lun).and_then(|own| nexus.known(own)) else { continue };
            let held = lu.shared.reservations().held(&nexus.name);
            itl.set_held(held);
            if let Some(told) = news.told.get(&nexus.name) {
                itl.attend(attention(*told));
            }
        }
    }

    /// Ends the SPC-2 reservations that a nexus holds, and no longer prevents the removal of media, of any unit: it is
    /// lost, or ends.
    pub(crate) async fn let_go(&self, nexus: &Nexus) {
        for lu in self.units() {
            lu.shared.allow(Some(&nexus.name));
            self.forget_spc2(&lu, Some(&nexus.name)).await;
        }
    }

    /// Ends the SPC-2 reservation of a unit, if this nexus holds it, or whoever does.
    pub(crate) async fn forget_spc2(&self, lu: &LogicalUnit, of: Option<&NexusName>) {
        let is_hit = || lu.shared.reservations().spc2().is_some_and(|holder| of.is_none_or(|name| name == holder));
        if !is_hit() {
            return;
        }
        let _turn = lu.shared.turn().await;
        if !is_hit() {
            return;
        }
        lu.shared.reservations().forget_spc2();
        let news = Arc::default();
        self.tell_reservations(lu.lun, &news);
        self.everywhere.broadcast(Mail::Reservations { lun: lu.lun, news }).await;
    }
}
