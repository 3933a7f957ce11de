//! WRs that only change keys: windows bound, keys invalidated. Rule: in the order of the QP, like all its WRs.

use super::queue::Wqe;
use super::state::{Bind, Bound, KeyKind, State};
use crate::access::MrAccess;
use ibverbs_sys::*;

impl State {
    /// Carries out a bind or an invalidation.
    pub(super) fn carry_out_here(&mut self, number: u32, wqe: &Wqe) -> Option<u32> {
        let qp = &self.qps[number as usize];
        if self.contexts[qp.context as usize].dead {
            return None;
        }
        if wqe.opcode == ibv_wr_opcode::IBV_WR_LOCAL_INV {
            return Some(self.invalidate(number, wqe.rkey));
        }
        let bind = self.binds.remove(&(number, qp.sq.done));
        let bound = bind.is_some_and(|bind| self.bind(number, wqe.rkey, bind).is_some());
        Some(if bound { ibv_wc_status::IBV_WC_SUCCESS } else { ibv_wc_status::IBV_WC_MW_BIND_ERR })
    }

    fn bind(&mut self, number: u32, rkey: u32, bind: Bind) -> Option<()> {
        let pd = self.qps[number as usize].pd;
        let mw = self.keys.get(bind.mw as usize)?;
        // The upper bits of a key are the device's, and the lower ones the program's.
        let fresh = mw.value >> 8 == rkey >> 8 && mw.value != rkey && mw.value == bind.present;
        let ours = mw.alive && mw.pd == pd && fresh;
        let KeyKind::Mw { type_2, bound: before, .. } = mw.kind else { return None };
        // A window of type 2 that is bound must be invalidated first.
        if !ours || (type_2 && before.is_some()) {
            return None;
        }
        let mut range = (0, 0);
        if let Some(at) = bind.mr {
            let mr = self.keys.get_mut(at as usize)?;
            let KeyKind::Mr { windows, .. } = &mut mr.kind else { return None };
            let offset = bind.address.checked_sub(mr.iova)?;
            let inside = offset.checked_add(bind.length)? <= mr.length;
            let writes = bind.access.intersects(MrAccess::REMOTE_WRITE | MrAccess::REMOTE_ATOMIC);
            let allowed = mr.access.contains(MrAccess::MW_BIND)
                && (!writes || mr.access.contains(MrAccess::LOCAL_WRITE));
            if !mr.alive || mr.pd != pd || !inside || !allowed {
                return None;
            }
            *windows += 1;
            range = (mr.address + offset, at);
        }
        self.unbind(bind.mw);
        let mw = &mut self.keys[bind.mw as usize];
        mw.value = rkey;
        (mw.address, mw.iova, mw.length, mw.access) = (range.0, bind.address, bind.length, bind.access);
        if let KeyKind::Mw { bound, .. } = &mut mw.kind {
            *bound = bind.mr.map(|mr| Bound { mr, qp: number });
        }
        Some(())
    }

    fn invalidate(&mut self, number: u32, rkey: u32) -> u32 {
        let pd = self.qps[number as usize].pd;
        let at = rkey >> 8;
        let window = self.is_open(rkey, pd) && matches!(self.keys[at as usize].kind, KeyKind::Mw { .. });
        if !window {
            return ibv_wc_status::IBV_WC_LOC_PROT_ERR;
        }
        self.unbind(at);
        ibv_wc_status::IBV_WC_SUCCESS
    }

    /// Takes a window off its MR, if it is on one.
    pub(super) fn unbind(&mut self, mw: u32) {
        let KeyKind::Mw { bound, .. } = &mut self.keys[mw as usize].kind else { return };
        let Some(Bound { mr, .. }) = bound.take() else { return };
        if let KeyKind::Mr { windows, .. } = &mut self.keys[mr as usize].kind {
            *windows -= 1;
        }
    }

    /// Windows of type 2 are closed with the QP they are bound on.
    pub(super) fn unbind_those_of(&mut self, qp: u32) {
        if self.devices[self.qps[qp as usize].device as usize].live.mws == 0 {
            return;
        }
        for mw in 0..self.keys.len() as u32 {
            if let KeyKind::Mw { type_2: true, bound: Some(Bound { qp: on, .. }), .. } =
                self.keys[mw as usize].kind
            {
                if on == qp {
                    self.unbind(mw);
                }
            }
        }
    }
}
